"""One table, both ways; every tensor accounted for before anything is written."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trnt.checkpoint import mapping
from trnt.errors import TrntError
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
def test_there_and_back_is_bit_identical(entry: ModelEntry) -> None:
    native = {name: torch.randn(shape) for name, shape in mapping.native_shapes(entry).items()}
    if entry.size.tied:
        native["lm_head.weight"] = native["tok_embeddings.weight"].clone()
    hf = dict(mapping.to_hf(entry, native.__getitem__))
    assert {name: tuple(t.shape) for name, t in hf.items()} == mapping.hf_shapes(entry)
    back = dict(mapping.to_native(entry, hf.__getitem__))
    assert back.keys() == native.keys()
    assert all(torch.equal(back[name], native[name]) for name in native)


def test_expert_i_stays_expert_i() -> None:
    entry = small("qwen3-tiny-moe", num_layers=1, num_experts=12, top_k=1)
    native = {
        name: torch.arange(12.0)[:, None, None].expand(shape)
        if shape[0] == 12 and len(shape) == 3
        else torch.zeros(shape)
        for name, shape in mapping.native_shapes(entry).items()
    }
    for name, tensor in mapping.to_hf(entry, native.__getitem__):
        if ".experts." in name:
            assert (tensor == int(name.split(".experts.")[1].split(".")[0])).all()


def test_everything_wrong_is_listed_at_once() -> None:
    expected = {"a": (2, 3), "b": (4,), "c": (1,)}
    with pytest.raises(TrntError) as caught:
        mapping.check(expected, {"a": (3, 2), "c": (1,), "d": (9,), "ok": ()}, where="F", extra_ok=["ok"])
    said = caught.value.cause
    assert "missing b" in said
    assert "unexpected d" in said
    assert "a is [3, 2], not [2, 3]" in said
    assert "ok" not in said.replace("not", "")


def test_a_tied_head_that_differs_is_refused() -> None:
    entry = small("qwen3-tiny")
    native = {name: torch.randn(shape) for name, shape in mapping.native_shapes(entry).items()}
    with pytest.raises(TrntError, match="differs from the embedding"):
        dict(mapping.to_hf(entry, native.__getitem__))
