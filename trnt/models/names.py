"""One row of a family's table of names: a tensor's name here and on the Hub, its shape, and what is done to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Row:
    """`hf` and `native` hold {layer} and {expert} where they count up.

    shape: letters of the family's `dimensions`, of the Hub's tensor. transform: copy; experts (the Hub's tensors of
    experts 0, 1, 2 ... are the native one's slices along dimension 0); tied (absent on the Hub when the head is the
    embedding); rotary (the rows of each head, H of them, in another order: `checkpoint/reordered.py`); transposed (the
    last two dimensions the other way round: `checkpoint/transposed.py`).
    when: always, or only in layers of a kind that the family's `row_kinds` names. dtype: safetensors' code of a tensor
    that is kept in it whatever the others are in.
    """

    hf: str
    native: str
    shape: str
    transform: Literal["copy", "experts", "tied", "rotary", "transposed"] = "copy"
    when: Literal["always", "dense", "moe", "q_lora", "q_direct"] = "always"
    dtype: str | None = None


@dataclass(frozen=True)
class Fused:
    """Experts in one tensor, as some writers save them: [num_experts, parts x rows, columns], the parts one after the
    other for each expert. parts: the `hf` of the table's rows, in order.
    """

    hf: str
    parts: tuple[str, ...]
