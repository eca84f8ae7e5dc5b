"""Whether a folder holds its model: every difference named, tied heads in all four cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trnt.checkpoint import inspect, mapping
from trnt.errors import TrntError
from trnt.models import registry
from trnt.models.registry import ModelEntry


def small(name: str, **changes: object) -> ModelEntry:
    entry = registry.get(name)
    return replace(entry, size=replace(entry.size, **changes))


def weights(entry: ModelEntry) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in mapping.hf_shapes(entry).items()}


def test_everything_wrong_is_listed_at_once(memory: Callable[..., Any]) -> None:
    entry = small("qwen3-tiny", num_layers=1)
    held = weights(entry)
    del held["model.norm.weight"]
    held["model.extra"] = torch.ones(1)
    held["model.layers.0.input_layernorm.weight"] = torch.ones(5)
    held["model.layers.0.mlp.up_proj.weight"] = held["model.layers.0.mlp.up_proj.weight"].to(torch.int32)
    held["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    with pytest.raises(TrntError) as caught:
        inspect.check_source(memory("hf", held), entry)
    said = caught.value.cause
    assert "missing model.norm.weight" in said
    assert "unexpected model.extra" in said
    assert "input_layernorm.weight is [5], not [128]" in said
    assert "up_proj.weight is I32, no floating-point weight" in said
    assert "inv_freq" not in said


@pytest.mark.parametrize("gone", [0, 5])
def test_an_expert_too_few_or_too_many_is_named(gone: int, memory: Callable[..., Any]) -> None:
    entry = small("qwen3-tiny-moe", num_layers=1, num_experts=6, top_k=1)
    held = weights(entry)
    name = f"model.layers.0.mlp.experts.{gone}.up_proj.weight"
    value = held.pop(name)
    with pytest.raises(TrntError, match=f"missing {name}"):
        inspect.check_source(memory("hf", held), entry)
    held |= {name: value, name.replace(f".{gone}.", ".6."): value}
    with pytest.raises(TrntError, match=r"unexpected .*experts\.6\.up_proj"):
        inspect.check_source(memory("hf", held), entry)


def test_a_tied_head_may_be_absent_or_equal_and_not_different(memory: Callable[..., Any]) -> None:
    tied, free = small("qwen3-tiny", num_layers=1), small("qwen3-tiny", num_layers=1, tied=False)
    held = weights(tied)
    assert inspect.check_source(memory("hf", held), tied) == []
    held["lm_head.weight"] = held["model.embed_tokens.weight"].clone()
    assert "is left out" in inspect.check_source(memory("hf", held), tied)[0]
    held["lm_head.weight"][-1, -1] += 1
    with pytest.raises(TrntError, match=r"lm_head\.weight differs"):
        inspect.check_source(memory("hf", held), tied)
    assert inspect.check_source(memory("hf", held), free) == []
    del held["lm_head.weight"]
    with pytest.raises(TrntError, match=r"missing lm_head\.weight"):
        inspect.check_source(memory("hf", held), free)


def test_a_tied_native_head_that_differs_is_refused(memory: Callable[..., Any]) -> None:
    entry = small("qwen3-tiny", num_layers=1)
    native = {name: torch.zeros(shape) for name, shape in mapping.native_shapes(entry).items()}
    inspect.check_source(memory("dcp", native), entry)
    native["lm_head.weight"][0, 0] = 1
    with pytest.raises(TrntError, match="differs from tok_embeddings"):
        inspect.check_source(memory("dcp", native), entry)


def test_experts_of_two_dtypes_do_not_stack(memory: Callable[..., Any]) -> None:
    entry = small("qwen3-tiny-moe", num_layers=1, num_experts=4, top_k=1)
    held = weights(entry)
    inspect.check_one_dtype(memory("hf", held), entry)
    name = "model.layers.0.mlp.experts.2.up_proj.weight"
    held[name] = held[name].bfloat16()
    with pytest.raises(TrntError, match=r"experts\.2\.up_proj\.weight is BF16"):
        inspect.check_one_dtype(memory("hf", held), entry)
