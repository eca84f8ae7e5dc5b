"""Counts, sums and differences are those of torch, and a flipped bit is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trnt.checkpoint import mapping, verify
from trnt.checkpoint.layout import targets
from trnt.errors import TrntError
from trnt.models import registry

ENTRY = registry.get("qwen3-tiny-moe")
ENTRY = replace(ENTRY, size=replace(ENTRY.size, num_layers=1, num_experts=4, top_k=1, vocab_size=100))


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in mapping.hf_shapes(ENTRY).items()}


def test_sums_and_counts(memory: Callable[..., Any]) -> None:
    values = torch.arange(10.0)
    values[2], values[4], values[5] = float("nan"), float("inf"), float("-inf")
    source = memory("hf", {"a": values, "b": torch.full((4,), 3e38), "n": torch.tensor([1, 2]), "e": torch.empty(0)})
    rows = {row.tensor: row for row in verify.look(source, source.tensors)}
    assert (rows["a"].sum, rows["a"].nan, rows["a"].infinite) == (0 + 1 + 3 + 6 + 7 + 8 + 9, 1, 2)
    assert (rows["b"].sum, rows["b"].nan, rows["b"].infinite) == (float(torch.full((4,), 3e38).double().sum()), 0, 0)
    assert rows["n"].sum == 3
    assert rows["e"].sum == 0


def test_the_same_model_in_two_forms_is_the_same(memory: Callable[..., Any], weights: dict[str, torch.Tensor]) -> None:
    hf = memory("hf", weights)
    native = memory("dcp", hf.filled(targets(hf, ENTRY, "dcp", None)))
    for a, b in ((hf, native), (native, hf)):
        rows = verify.compare(a, b, verify.pairs(a, b, ENTRY))
        assert not any(row.different for row in rows)
        assert {row.tensor.partition("[")[0] for row in rows} <= set(a.tensors)
        verify.must_be_same(rows, Path("x"))


def test_one_bit_is_found_with_its_size(memory: Callable[..., Any], weights: dict[str, torch.Tensor]) -> None:
    name = "model.layers.0.mlp.experts.2.up_proj.weight"
    changed = {key: tensor.clone() for key, tensor in weights.items()}
    changed[name].view(torch.int32)[3, 3] ^= 1
    a, b = memory("hf", weights), memory("hf", changed)
    bad = [row for row in verify.compare(a, b, verify.pairs(a, b, ENTRY)) if row.different]
    assert [(row.tensor, row.different) for row in bad] == [(name, 1)]
    assert bad[0].max_difference == float((weights[name] - changed[name]).abs().max()) > 0
    with pytest.raises(TrntError, match=r"experts\.2\.up_proj"):
        verify.must_be_same(bad, Path("x"))
    assert name in verify.table(bad)


def test_dtypes_are_compared_in_the_narrower(memory: Callable[..., Any], weights: dict[str, torch.Tensor]) -> None:
    narrow = {name: tensor.bfloat16() for name, tensor in weights.items()}
    a, b = memory("hf", weights), memory("hf", narrow)
    rows = verify.compare(a, b, verify.pairs(a, b, ENTRY))
    assert not any(row.different for row in rows)
    assert verify.unlike_dtype(rows)


def test_nan_equals_itself_and_nothing_else(memory: Callable[..., Any], weights: dict[str, torch.Tensor]) -> None:
    spoiled = {name: tensor.clone() for name, tensor in weights.items()}
    spoiled["model.norm.weight"][1] = float("nan")
    a, b = memory("hf", spoiled), memory("hf", weights)
    assert not any(row.different for row in verify.compare(a, a, verify.pairs(a, a, ENTRY)))
    row = next(r for r in verify.compare(a, b, verify.pairs(a, b, ENTRY)) if r.different)
    assert (row.tensor, row.nan, row.max_difference) == ("model.norm.weight", 1, float("inf"))
    assert verify.as_json([row])[0]["max_difference"] == "inf"
