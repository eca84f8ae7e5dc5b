"""One table, both ways; every tensor accounted for before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trnt.checkpoint import mapping
from trnt.checkpoint.layout import targets
from trnt.models import registry
from trnt.models.registry import ModelEntry


def small(name: str, **changes: object) -> ModelEntry:
    entry = registry.get(name)
    return replace(entry, size=replace(entry.size, **changes))


CASES = [
    small("qwen3-tiny"),
    small("qwen3-tiny", tied=False, num_layers=1),
    small("qwen3-tiny-moe", num_layers=2, num_experts=5, top_k=2),
    small("qwen3-tiny-moe", num_layers=1, tied=False, num_experts=4, top_k=1, moe_intermediate_size=128),  # 2 I = H
]


@pytest.mark.parametrize("entry", CASES)
def test_native_names_and_shapes_are_those_of_the_built_model(entry: ModelEntry) -> None:
    from trnt.kernels.swap import swap

    config = entry.family.titan_spec(entry.name, entry.size).model
    swap(config)
    with torch.device("meta"):
        model = config.build()
    state = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert mapping.native_shapes(entry) == state


@pytest.mark.parametrize("entry", CASES)
def test_there_and_back_is_bit_identical(
    entry: ModelEntry, memory: Callable[..., Any], same_bits: Callable[..., bool]
) -> None:
    native = {name: torch.randn(shape) for name, shape in mapping.native_shapes(entry).items()}
    if entry.size.tied:
        native["lm_head.weight"] = native["tok_embeddings.weight"].clone()
    there = memory("dcp", native)
    hf = there.filled(targets(there, entry, "hf", None))
    assert {name: tuple(t.shape) for name, t in hf.items()} == mapping.hf_shapes(entry)
    here = memory("hf", hf)
    back = here.filled(targets(here, entry, "dcp", None))
    for name in mapping.dropped_names(entry):
        native[name] = torch.zeros(entry.size.num_experts)
    assert same_bits(back, native)


def test_expert_i_stays_expert_i_both_ways(memory: Callable[..., Any]) -> None:
    entry = small("qwen3-tiny-moe", num_layers=1, num_experts=12, top_k=1)
    native = {
        name: torch.arange(12.0)[:, None, None].expand(shape)
        if shape[0] == 12 and len(shape) == 3
        else torch.zeros(shape)
        for name, shape in mapping.native_shapes(entry).items()
    }
    there = memory("dcp", native)
    hf = there.filled(targets(there, entry, "hf", None))
    experts = [name for name in hf if ".experts." in name]
    assert len(experts) == 36
    for name in experts:
        assert (hf[name] == int(name.split(".experts.")[1].split(".")[0])).all()
    here = memory("hf", hf)
    back = here.filled(targets(here, entry, "dcp", None))
    for name, tensor in back.items():
        if tensor.dim() == 3:
            assert torch.equal(tensor, native[name])


@pytest.mark.parametrize("width", [64, 128])  # with 128, 2 x width = hidden size: shapes cannot tell the layouts apart
def test_fused_experts_are_known_by_name(
    width: int, memory: Callable[..., Any], same_bits: Callable[..., bool]
) -> None:
    entry = small("qwen3-tiny-moe", num_layers=1, num_experts=4, top_k=1, moe_intermediate_size=width, tied=False)
    plain = {name: torch.randn(shape) for name, shape in mapping.hf_shapes(entry).items()}
    fused = {name: tensor for name, tensor in plain.items() if ".experts." not in name}
    base = "model.layers.0.mlp.experts"
    fused[f"{base}.gate_up_proj"] = torch.stack(
        [torch.cat([plain[f"{base}.{e}.{part}_proj.weight"] for part in ("gate", "up")]) for e in range(4)]
    )
    fused[f"{base}.down_proj"] = torch.stack([plain[f"{base}.{e}.down_proj.weight"] for e in range(4)])
    assert {n: tuple(t.shape) for n, t in fused.items()} == mapping.file_shapes(entry, "hf", fused)
    one, two = memory("hf", plain), memory("hf", fused)
    assert same_bits(one.filled(targets(one, entry, "dcp", None)), two.filled(targets(two, entry, "dcp", None)))


def test_the_first_layers_and_experts_are_stretches_of_the_whole(memory: Callable[..., Any]) -> None:
    whole = small("qwen3-tiny-moe", num_layers=3, num_experts=6, top_k=1)
    part = whole.cut(2, 4)
    hf = {name: torch.randn(shape) for name, shape in mapping.hf_shapes(whole).items()}
    native = memory("hf", hf).filled(targets(memory("hf", hf), whole, "dcp", None))
    for kind, held in (("hf", hf), ("dcp", native)):
        source = memory(kind, held)
        found = source.filled(targets(source, part, "hf", None))
        assert {n: tuple(t.shape) for n, t in found.items()} == mapping.hf_shapes(part)
        for name, tensor in found.items():
            assert torch.equal(tensor, hf[name][: tensor.shape[0]])
