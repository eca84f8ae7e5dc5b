"""A family's table of names applied to a size: every tensor on both sides, known before any weight is read.

One list of links is read in both directions, so that a mapping cannot be right one way and wrong the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trnt.models.registry import ModelEntry


@dataclass(frozen=True)
class Link:
    """One Hugging Face tensor and where it lies in the native checkpoint.

    expert: None for a whole tensor, else the slice along dimension 0. on_hub False: a tied head, which the Hub's files
    leave out because it is the embedding. fused: the tensor that holds it in files written with fused experts, and
    where its values begin there. head: rows of one head where the two formats order them differently, else 0. turned:
    whether the last two dimensions of `shape`, the Hub's, are the other way round natively. dtype: what it is always
    written in, None for what the others are.
    """

    hf: str
    native: str
    shape: tuple[int, ...]
    expert: int | None = None
    on_hub: bool = True
    fused: tuple[str, int] | None = None
    head: int = 0
    dtype: str | None = None
    turned: bool = False

    @property
    def native_shape(self) -> tuple[int, ...]:
        """Of the native tensor, or of the expert's slice of it."""
        return (*self.shape[:-2], self.shape[-1], self.shape[-2]) if self.turned else self.shape

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def links(entry: ModelEntry) -> list[Link]:
    """Every tensor of a model, in the order of the table, layer by layer."""
    family, size = entry.family, entry.size
    letters = family.dimensions(size)
    before = [row for row in family.TABLE if "{layer}" not in row.hf]
    inside = [row for row in family.TABLE if "{layer}" in row.hf]
    found: list[Link] = []
    for row, layer in [
        *((row, None) for row in before[:1]),
        *(
            (row, layer)
            for layer in range(size.num_layers)
            for row in inside
            if row.when in {"always", *family.row_kinds(size, layer)}
        ),
        *((row, None) for row in before[1:]),
    ]:
        shape = tuple(letters[letter] for letter in row.shape)
        experts: Iterable[int | None] = range(size.num_experts) if row.transform == "experts" else (None,)
        on_hub = not (row.transform == "tied" and size.tied)
        for expert in experts:
            hf, native = (text.format(layer=layer, expert=expert) for text in (row.hf, row.native))
            fused = _fused(family, row, layer, expert, math.prod(shape))
            head = letters["H"] if row.transform == "rotary" else 0
            turned = row.transform == "transposed"
            found.append(Link(hf, native, shape, expert, on_hub, fused, head, row.dtype, turned))
    return found


def _fused(family: Any, row: Any, layer: int | None, expert: int | None, numel: int) -> tuple[str, int] | None:
    """Where a row's values lie in the family's fused layout, None for one that has no part in it."""
    for fused in family.FUSED:
        if row.hf in fused.parts and expert is not None:
            place = expert * len(fused.parts) + fused.parts.index(row.hf)
            return fused.hf.format(layer=layer), place * numel
    return None


def places(entry: ModelEntry, kind: str, names: Iterable[str]) -> dict[Link, tuple[str, int]]:
    """Link -> (tensor, first value) in a folder of `kind` hf or dcp that holds tensors of these names.

    A tied head that the folder does not hold is read from the embedding. Fused experts are known by their names, never
    by a shape: with 2 x moe_intermediate_size = hidden_size both layouts would fit.
    """
    held, all_links = set(names), links(entry)
    embedding = next(link for link in all_links if link.native == "tok_embeddings.weight")
    found: dict[Link, tuple[str, int]] = {}
    for link in all_links:
        if kind == "dcp":
            found[link] = (link.native, (link.expert or 0) * link.numel)
        elif not link.on_hub:
            found[link] = (embedding.hf, 0)
        elif link.fused is not None and link.fused[0] in held:
            found[link] = link.fused
        else:
            found[link] = (link.hf, 0)
    return found


def file_shapes(entry: ModelEntry, kind: str, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of what such a folder must hold, fused where its names say so."""
    if kind == "dcp":
        return native_shapes(entry)
    held = set(names)
    shapes: dict[str, tuple[int, ...]] = {}
    for link in links(entry):
        if not link.on_hub:
            continue
        if link.fused is not None and link.fused[0] in held:
            if link.expert == 0:  # its parts, one after the other
                rows = shapes.get(link.fused[0], (0, 0))[1] + link.shape[0]
                shapes[link.fused[0]] = (entry.size.num_experts, rows, *link.shape[1:])
        else:
            shapes[link.hf] = link.shape
    return shapes


def native_shapes(entry: ModelEntry) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the native checkpoint's model tensors."""
    shapes: dict[str, tuple[int, ...]] = {}
    for link in links(entry):
        one = link.native_shape
        shapes[link.native] = one if link.expert is None else (entry.size.num_experts, *one)
    return shapes


def hf_shapes(entry: ModelEntry) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the Hugging Face tensors."""
    return {link.hf: link.shape for link in links(entry) if link.on_hub}


def dropped_names(entry: ModelEntry) -> list[str]:
    """Native tensors without a place on the Hub that may be there."""
    if not entry.size.num_experts:
        return []
    return [name.format(layer=layer) for name in entry.family.DROPPED for layer in range(entry.size.num_layers)]
