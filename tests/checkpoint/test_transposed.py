"""Stacks of matrices seen transposed: any stretch, other tensors untouched, and twice is not at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.checkpoint.conftest import Memory
from trnt.checkpoint.transposed import Transposed, transposed

HELD = torch.arange(3 * 4 * 5, dtype=torch.float32).view(3, 4, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float64])
def test_any_stretch(dtype: Any) -> None:
    source = Transposed(Memory("hf", {"w": HELD.to(dtype), "other": HELD}), ["w"])
    assert source.tensors["w"].shape == (3, 5, 4)
    assert source.tensors["other"].shape == (3, 4, 5)
    assert torch.equal(source.tensor("other"), HELD)
    flat = HELD.to(dtype).transpose(1, 2).contiguous().view(-1).view(torch.uint8)
    size = dtype.itemsize
    for first in range(0, 60, 7):
        for length in (1, 4, 23, 60 - first):
            length = min(length, 60 - first)
            out = bytearray(length * size)
            source.read("w", first, memoryview(out))
            assert bytes(out) == bytes(flat[first * size : (first + length) * size].numpy()), (first, length)


def test_twice_is_the_source_itself_and_nothing_is_nothing() -> None:
    memory = Memory("hf", {"w": HELD, "v": HELD})
    once = transposed(memory, ["w"])
    assert transposed(once, ["w"]) is memory
    assert transposed(memory, []) is memory
    both = transposed(once, ["w", "v"])
    assert torch.equal(both.tensor("w"), HELD)
    assert torch.equal(both.tensor("v"), HELD.transpose(1, 2))
