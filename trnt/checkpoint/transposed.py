"""A checkpoint read as if the matrices of some stacks [E, r, c] were transposed, matrix by matrix.

GPT-OSS's bf16 files hold experts as [E, in, out], torchtitan [E, out, in]. A piece of the one is columns of the other,
so that a matrix is read whole, turned once, and kept until its pieces are handed out: one matrix per worker in memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

from trnt.checkpoint.dtypes import size_of
from trnt.checkpoint.source import Info, Source
from trnt.checkpoint.wrapped import Wrapped
from trnt.checkpoint.written import WORKERS


class Transposed(Wrapped):
    """`source` with the last two dimensions of some tensors exchanged."""

    def __init__(self, source: Source, names: Iterable[str]) -> None:
        self.names = set(names)
        super().__init__(source, {name: self._turned(name, info) for name, info in source.tensors.items()})
        self._matrix = functools.lru_cache(WORKERS)(self._read_matrix)

    def _turned(self, name: str, info: Info) -> Info:
        if name not in self.names:
            return info
        *stack, rows, columns = info.shape
        return Info(info.dtype, (*stack, columns, rows))

    def _read_matrix(self, name: str, number: int) -> Any:
        """Matrix `number` of a stack, transposed, as bytes."""
        import torch

        info = self.source.tensors[name]
        rows, columns = info.shape[-2:]
        buffer = bytearray(rows * columns * size_of(info.dtype))
        self.source.read(name, number * rows * columns, memoryview(buffer))
        width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size_of(info.dtype)]
        return torch.frombuffer(buffer, dtype=width).view(rows, columns).t().contiguous().view(torch.uint8).view(-1)

    def read(self, name: str, first: int, out: memoryview) -> None:
        """Fill `out` with a stretch of the tensor as it is seen."""
        if name not in self.names:
            self.source.read(name, first, out)
            return
        info = self.tensors[name]
        begin, matrix = first * size_of(info.dtype), math.prod(info.shape[-2:]) * size_of(info.dtype)
        for number in range(begin // matrix, -(-(begin + len(out)) // matrix)):
            low, high = max(begin, number * matrix), min(begin + len(out), (number + 1) * matrix)
            turned = self._matrix(name, number)[low - number * matrix : high - number * matrix]
            out[low - begin : high - begin] = turned.numpy().data


def transposed(source: Source, names: Iterable[str]) -> Source:
    """`source` with these tensors transposed; what is transposed already is read as it lies."""
    wanted = set(names)
    if not wanted:
        return source
    if isinstance(source, Transposed) and source.names == wanted:
        return source.source
    return Transposed(source, wanted)
