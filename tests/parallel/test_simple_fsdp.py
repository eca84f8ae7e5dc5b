"""Weights gathered by tensor operations: first weights, tied heads and the loss in chunks. Layouts: test_layouts.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torchtitan.config import TrainingConfig
from torchtitan.distributed import ParallelDims

from trnt.kernels.loss import ChunkedLoss
from trnt.launch import free_port
from trnt.models import registry
from trnt.parallel import simple_fsdp


@pytest.fixture(scope="module")
def dims() -> Iterator[ParallelDims]:
    os.environ |= {"LOCAL_RANK": "0"}
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    one = dict.fromkeys(("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "world_size"), 1)
    yield ParallelDims(**one, spmd_backend="partial_dtensor")
    dist.destroy_process_group()


def built(name: str, dims: ParallelDims | None) -> Any:
    entry = registry.get(name)
    model = entry.family.titan_spec(name, entry.size).model.build()
    if dims is not None:
        simple_fsdp.apply(model, parallel_dims=dims, training=TrainingConfig(mixed_precision_param="float32"))
    torch.manual_seed(0)
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device("cpu"))
    return model


def test_the_first_weights_are_those_of_a_plain_model_and_a_tied_head_stays_tied(dims: ParallelDims) -> None:
    plain, spread = built("qwen3-tiny", None), built("qwen3-tiny", dims)
    mine = dict(spread.named_parameters())
    assert mine.keys() == dict(plain.named_parameters()).keys()
    for name, parameter in plain.named_parameters():
        assert isinstance(mine[name], DTensor)
        assert torch.equal(mine[name].to_local(), parameter), name
    assert spread.tok_embeddings._parameters["weight"] is spread.lm_head._parameters["weight"]
    assert not isinstance(spread.lm_head.weight, DTensor)


@pytest.mark.parametrize("limit", [64 * 2048 * 4, 1 << 30])  # several chunks, and one
def test_the_head_is_gathered_once_and_its_parts_get_its_gradient(
    dims: ParallelDims, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, spread = built("llama3-tiny", None), built("llama3-tiny", dims)
    gathers: list[str] = []
    gather = simple_fsdp.titan.ReplicateComputation.forward

    def counted(self: Any, x: DTensor) -> torch.Tensor:
        gathers.append("head")
        return gather(self, x)

    monkeypatch.setattr(simple_fsdp.titan.ReplicateComputation, "forward", counted)
    hidden = torch.randn(2, 48, registry.get("llama3-tiny").size.hidden_size)
    labels = torch.randint(0, 2048, (2, 48))
    found = []
    for model, kind in ((plain, ChunkedLoss), (spread, simple_fsdp.GatheredLoss)):
        loss = kind(kind.Config(max_logits_bytes=limit))
        loss.set_lm_head(model.lm_head)
        x = hidden.clone().requires_grad_()
        gathers.clear()
        value, _ = loss(x, labels, torch.tensor(96))
        value.backward()
        found.append((value.detach(), x.grad, model.lm_head._parameters["weight"].grad))
    assert gathers == ["head"]
    (value, x, weight), (value2, x2, weight2) = found
    assert isinstance(weight2, DTensor)
    assert torch.equal(value, value2)
    assert torch.equal(x, x2)
    assert torch.equal(weight, weight2.to_local())
    assert type(spread.lm_head).__name__ == "SimpleFSDPLinear"


def test_a_module_without_spread_weights_is_left_alone() -> None:
    layer = torch.nn.Linear(2, 3)
    with simple_fsdp.gathered(layer):
        layer(torch.ones(2)).sum().backward()
    assert layer.weight.grad is not None
