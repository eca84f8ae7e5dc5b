"""A checkpoint without some of its tensors."""

from __future__ import annotations

import torch

from tests.checkpoint.conftest import Memory
from trnt.checkpoint.wrapped import without


def test_what_is_left_out_is_not_seen_and_the_rest_is_read_as_it_is() -> None:
    memory = Memory("hf", {"a": torch.arange(6.0), "b": torch.zeros(2)})
    assert without(memory, []) is memory
    seen = without(memory, ["b", "no such"])
    assert list(seen.tensors) == ["a"]
    assert torch.equal(seen.tensor("a"), torch.arange(6.0))
    assert (seen.kind, seen.path, seen.files(), seen.file_of("a")) == ("hf", memory.path, [], "")
