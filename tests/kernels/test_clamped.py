"""GPT-OSS's experts on CPU equal the reference, forward and all gradients, on both ways through them."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.test_routed import D, E, F, different, routing
from trnt.kernels import grads, reference, routed
from trnt.kernels.clamped import ClampedExperts, RoutedClamped, tensor_parallel

LIMIT = 1.5  # so that both clamps are at work
NAMES = ("dx", "dscores", "dw1", "db1", "dw2", "db2")


def inputs(tokens: int, top_k: int) -> list[torch.Tensor]:
    """x, scores, gate and up in alternating rows with their bias, down with its bias."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(tokens, D), (tokens, top_k), (E, 2 * F, D), (E, 2 * F), (E, D, F), (E, D)]
    x, scores, w1, b1, w2, b2 = (torch.randn(shape, generator=generator) for shape in shapes)
    held = [x, scores.sigmoid(), w1.mul_(0.4), b1, w2.mul_(0.2), b2]
    return [tensor.requires_grad_() for tensor in held]


def plain(x: torch.Tensor, scores: torch.Tensor, ids: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    w1, b1, w2, b2 = weights
    parts = (w1[:, ::2], w2, w1[:, 1::2], b1[:, ::2], b2, b1[:, 1::2])
    return reference.routed_experts(x, scores, ids, *parts, act="clamped", limit=LIMIT)


@pytest.mark.parametrize("kind", ["even", "skewed", "one", "empty"])
@pytest.mark.parametrize(("tokens", "top_k"), [(37, 1), (33, 4), (1, 2)])
@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("shared", [1, 1 << 30], ids=["threads", "alone"])
def test_output_and_gradients_equal_the_reference(
    kind: str, tokens: int, top_k: int, owned: bool, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed, "LEAST_SHARED", shared)
    ids = routing(tokens, top_k, kind)
    x, scores, *weights = inputs(tokens, top_k)
    do = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    expected = plain(x, scores, ids, *weights)
    wanted = torch.autograd.grad(expected, (x, scores, *weights), do)
    if owned:
        for weight in (weights[0], weights[2]):
            grads.own(weight)
            weight.grad = torch.full_like(weight, float("nan"))  # an earlier step's gradient must not shine through
    got = RoutedClamped.apply(x, scores, ids, *weights, LIMIT)
    got.backward(do)
    found = [tensor.grad for tensor in (x, scores, *weights)]
    assert not different(got, expected)
    assert [name for name, one, two in zip(NAMES, found, wanted, strict=True) if different(one, two)] == []


def test_both_clamps_are_at_work_here() -> None:
    x, _, w1, b1, *_ = inputs(33, 4)
    raw = torch.einsum("td,egd->teg", x, w1) + b1
    assert (raw[..., ::2] > LIMIT).any()
    assert (raw[..., 1::2].abs() > LIMIT).any()


def module(weights: list[torch.Tensor]) -> ClampedExperts:
    experts = ClampedExperts(ClampedExperts.Config(dim=D, hidden_dim=F, num_experts=E, swiglu_limit=LIMIT))
    named = (experts.mlp1_weight_EGD, experts.mlp1_bias_EG, experts.mlp2_weight_EDF, experts.mlp2_bias_ED)
    with torch.no_grad():
        for parameter, value in zip(named, weights, strict=True):
            parameter.copy_(value)
    return experts


def test_rows_sorted_by_expert_go_through_the_graph_s_way_with_the_same_numbers() -> None:
    ids = routing(40, 1, "skewed").sort(0).values
    x, _, *weights = inputs(40, 1)
    experts, ones = module(weights), torch.ones(40, 1)
    counts = torch.bincount(ids.flatten(), minlength=E)
    got = experts(x, counts)
    expected = experts.compute(x, ones, ids)
    assert not different(got, expected)
    for one, two in zip(
        torch.autograd.grad(got.square().sum(), list(experts.parameters())),
        torch.autograd.grad(expected.square().sum(), list(experts.parameters())),
        strict=True,
    ):
        assert not different(one, two)


def test_padding_behind_the_last_expert_s_rows_changes_nothing() -> None:
    ids = routing(20, 1, "even").sort(0).values
    x, _, *weights = inputs(20, 1)
    experts, counts = module(weights), torch.bincount(ids.flatten(), minlength=E)
    padded = torch.cat([x, torch.ones(5, D)])
    assert torch.equal(experts(padded, counts)[:20], experts(x, counts))
    assert tensor_parallel(experts.mlp1_weight_EGD) == 1


def test_the_same_bits_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed, "LEAST_SHARED", 1)
    ids = routing(64, 8, "skewed")

    def once() -> list[torch.Tensor]:
        held = inputs(64, 8)
        out = RoutedClamped.apply(held[0], held[1], ids, *held[2:], LIMIT)
        return [out, *torch.autograd.grad(out.square().sum(), held)]

    assert all(torch.equal(one, two) for one, two in zip(once(), once(), strict=True))
