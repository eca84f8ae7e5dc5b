"""One norm over all gradients, one clip, whatever optimizer follows and however gradients are kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchtitan.components.optimizer import ParamGroupConfig

from trnt.assemble import param_groups, usual_lr
from trnt.kernels import grads
from trnt.optim.container import Optimizers, global_norm
from trnt.parallel.memory import Choice


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tok_embeddings = torch.nn.Embedding(64, 128)
        self.wo = torch.nn.Linear(128, 96, bias=False)
        self.norm = torch.nn.RMSNorm(96)
        self.lm_head = torch.nn.Linear(96, 64, bias=False)


def build(net: Net, groups: list[ParamGroupConfig], implementation: Any = "fused") -> Optimizers:
    return Optimizers(Optimizers.Config(param_groups=groups, implementation=implementation), model_parts=[net])


def fill(net: Net, size: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for weight in net.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator) * size


CHOICES = [
    ("adamw", Choice()),
    ("adamw", Choice("bf16")),
    ("adafactor", Choice()),
    ("muon", Choice()),
    ("sgd", Choice()),
]


@pytest.mark.parametrize(("optimizer", "choice"), CHOICES)
@pytest.mark.parametrize("size", [1e-4, 10.0])
def test_the_clip_is_torch_s(optimizer: str, choice: Choice, size: float) -> None:
    one, two = Net(), Net()
    ours, plain = (build(net, param_groups(optimizer, 1e-2, choice)) for net in (one, two))
    for _ in range(2):
        fill(one, size)
        fill(two, size)
        norm = ours.clip(1.0)
        expected = torch.nn.utils.clip_grad_norm_(two.parameters(), 1.0)
        assert torch.allclose(norm, expected)
        ours.step()
        plain.step()
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)  # g / scale or g * (1 / scale): the last bit of a gradient


def test_the_norm_counts_bf16_and_sparse_gradients_in_full() -> None:
    weights = [torch.nn.Parameter(torch.zeros(3000, 200)), torch.nn.Parameter(torch.zeros(50, 8))]
    grads.own(weights[0], torch.bfloat16)
    weights[0].grad = torch.randn(3000, 200, generator=torch.Generator().manual_seed(0)).bfloat16()
    torch.nn.functional.embedding(torch.tensor([3, 3, 7]), weights[1], sparse=True).sum().backward()
    expected = (weights[0].grad.float().square().sum() + weights[1].grad.to_dense().square().sum()).sqrt()
    # torch.linalg.vector_norm adds up in fp32: 2.6e-5 off over 600,000 numbers
    assert torch.allclose(global_norm(weights), expected, rtol=1e-4)


@pytest.mark.parametrize(("optimizer", "choice"), [*CHOICES, ("adamw", Choice("8bit"))])
def test_a_saved_state_goes_on(optimizer: str, choice: Choice) -> None:
    one, two = Net(), Net()
    first, second = (build(net, param_groups(optimizer, 1e-2, choice)) for net in (one, two))
    fill(one, 1.0)
    first.step()
    two.load_state_dict(one.state_dict())
    state = {key: value.clone() if hasattr(value, "clone") else value for key, value in first.state_dict().items()}
    second.load_state_dict(state)
    for net, optimizers in ((one, first), (two, second)):
        fill(net, 0.5)
        optimizers.step()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_norms_have_no_weight_decay_and_muon_takes_matrices_only() -> None:
    groups = param_groups("muon", 1e-2, Choice())
    net = Net()
    optimizers = build(net, groups)
    kinds = {type(o).__name__: [n for g in o.param_groups for n in g["param_names"]] for o in optimizers}
    assert kinds["Muon"] == ["wo.weight"]
    assert sorted(kinds["AdamW"]) == ["lm_head.weight", "norm.weight", "tok_embeddings.weight"]
    decays = {n: g["weight_decay"] for o in optimizers for g in o.param_groups for n in g["param_names"]}
    assert decays["norm.weight"] == 0.0
    assert decays["wo.weight"] == 0.1


def test_the_usual_learning_rate_falls_with_the_width() -> None:
    assert usual_lr(256) == usual_lr(512) == 1e-3
    assert usual_lr(2048) == pytest.approx(2.5e-4)
