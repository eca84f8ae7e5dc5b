"""Rows in the other order: any stretch, any size of piece, against the formula of Meta's conversion script."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.checkpoint.conftest import Memory
from trnt.checkpoint import reordered
from trnt.checkpoint.reordered import Reordered, ordered
from trnt.models import registry

HEAD, HEADS, COLUMNS = 6, 3, 5
HUB = torch.arange(HEAD * HEADS * COLUMNS, dtype=torch.float32).view(-1, COLUMNS)
NATIVE = HUB.view(HEADS, 2, HEAD // 2, COLUMNS).transpose(1, 2).reshape(-1, COLUMNS)


@pytest.mark.parametrize(("kind", "held", "expected"), [("hf", HUB, NATIVE), ("dcp", NATIVE, HUB)])
@pytest.mark.parametrize("piece", [1 << 20, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_any_stretch(
    monkeypatch: pytest.MonkeyPatch, kind: str, held: torch.Tensor, expected: torch.Tensor, piece: int, dtype: Any
) -> None:
    monkeypatch.setattr(reordered, "PIECE", piece)
    source = Reordered(Memory(kind, {"q": held.to(dtype), "other": held.to(dtype)}), {"q": HEAD})
    flat = expected.to(dtype).view(-1).view(torch.uint8)
    size = dtype.itemsize
    count = expected.numel()
    for first in range(0, count, 7):
        for length in (1, 4, 17, count - first):
            length = min(length, count - first)
            out = bytearray(length * size)
            source.read("q", first, memoryview(out))
            assert bytes(out) == bytes(flat[first * size : (first + length) * size].numpy()), (first, length)
    assert torch.equal(source.tensor("other").float(), held.to(dtype).float())


def test_only_where_the_formats_differ() -> None:
    llama, qwen = registry.get("llama3-tiny"), registry.get("qwen3-tiny")
    from trnt.checkpoint import mapping

    for entry, wrapped in ((llama, True), (qwen, False)):
        source = Memory("hf", {name: torch.zeros(shape) for name, shape in mapping.hf_shapes(entry).items()})
        assert ordered(source, entry, "hf") is source
        assert (ordered(source, entry, "dcp") is not source) == wrapped
        if wrapped:
            heads = ordered(source, entry, "dcp").heads  # type: ignore[attr-defined]
            assert set(heads.values()) == {entry.size.head_dim}
            assert len(heads) == 2 * entry.size.num_layers
