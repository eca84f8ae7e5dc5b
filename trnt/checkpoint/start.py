"""Filling a model that is built with the weights of a checkpoint, in place: no second copy of the model exists.

A sharded model reads its own part of every tensor, on every process.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from trnt import device

device.ensure()

from trnt import console
from trnt.checkpoint import mapping
from trnt.checkpoint.dtypes import size_of, torch_dtype
from trnt.checkpoint.mapping import Link
from trnt.checkpoint.reordered import ordered
from trnt.checkpoint.source import PIECE, Source, pieces
from trnt.errors import TrntError
from trnt.models.registry import ModelEntry
from trnt.parallel.parts import box, local


@torch.no_grad()
def fill(state: Mapping[str, torch.Tensor], source: Source, entry: ModelEntry) -> int:
    """Copy a checkpoint's values into the tensors of `state`, by native name, cast to their dtype. Returns how many.

    state: a part of the model's state dict may be on another process (pipeline stages). Raises TrntError naming every
    tensor of the model that received nothing.
    """
    where = mapping.places(entry, source.kind, source.tensors)
    source = ordered(source, entry, "dcp")
    filled: set[str] = set()
    with console.progress("loading weights", total=len(where), unit="tensors") as ticker:
        for link, (name, first) in where.items():
            ticker.advance()
            if link.native in state:
                _fill_one(state[link.native], link, source, name, first)
                filled.add(link.native)
    for name in mapping.dropped_names(entry):
        if name in state:
            bias = source.tensor(name)[: entry.size.num_experts] if name in source.tensors else None
            local(state[name]).zero_() if bias is None else local(state[name]).copy_(bias)
            filled.add(name)
    empty = [name for name, tensor in state.items() if name not in filled and isinstance(tensor, torch.Tensor)]
    if empty:
        raise TrntError(
            f"{source.path} gave nothing to {', '.join(empty[:20])}", "report this: the model and its table disagree"
        )
    return len(filled)


def _fill_one(tensor: torch.Tensor, link: Link, source: Source, name: str, first: int) -> None:
    """One link's values into their part of a native tensor."""
    local, begin = box(tensor)
    if link.expert is not None:
        if not begin[0] <= link.expert < begin[0] + local.shape[0]:
            return
        local, begin = local[link.expert - begin[0]], begin[1:]
    if not local.numel():
        return
    info = source.tensors[name]
    rows = local.shape[0] if local.dim() else 1
    shape = link.native_shape
    row = link.numel // (shape[0] if shape else 1)
    at = first + (begin[0] * row if begin else 0)
    inner = tuple(slice(b, b + n) for b, n in zip(begin[1:], local.shape[1:], strict=True))
    per_piece = max(1, PIECE // (row * size_of(info.dtype)))
    for row_first, count in pieces(rows, per_piece):
        buffer = bytearray(count * row * size_of(info.dtype))
        source.read(name, at + row_first * row, memoryview(buffer))
        values = torch.frombuffer(buffer, dtype=torch_dtype(info.dtype)).view(count, *shape[1:])
        if local.dim():
            local[row_first : row_first + count].copy_(values[(slice(None), *inner)])
        else:
            local.copy_(values.view(()))
