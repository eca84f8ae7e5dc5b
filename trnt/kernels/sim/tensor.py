"""Tensors as strided views of a storage: slicing, reshaping and access patterns copy nothing.

On chip dimension 0 is the partition: it is never permuted, split, merged or broadcast, and an integer index keeps it.
In HBM an integer index drops the dimension. Strides and offsets count elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from trnt.kernels.sim import numerics
from trnt.kernels.sim.machine import MATMUL, NOT_MATMUL, READ, WRITTEN, Storage, machine
from trnt.kernels.sim.refusal import refuse
from trnt.kernels.sim.registers import VirtualRegister
from trnt.kernels.sim.shaped import Shaped


@dataclass(frozen=True)
class DynamicSlice:
    """`nl.ds(start, size)`."""

    start: Any
    size: int


@dataclass(frozen=True)
class Rows:
    """A view whose rows are picked by an index tensor. step: elements from one row of the base to the next."""

    index: np.ndarray
    step: int
    count: int
    """Rows that the base tensor has."""


class NkiTensor(Shaped):
    """A view: `shape`, `strides` and `offset` in elements of `dtype`, over a storage."""

    def __init__(
        self,
        storage: Storage,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int = 0,
        dtype: str | None = None,
        rows: Rows | None = None,
        dynamic: bool = False,
    ) -> None:
        self.storage, self.shape, self.strides, self.offset = storage, tuple(shape), tuple(strides), offset
        self.dtype = dtype or storage.dtype
        self.rows = rows
        self.dynamic = dynamic or rows is not None

    @property
    def buffer(self) -> str:
        return self.storage.buffer

    @property
    def name(self) -> str:
        return self.storage.name

    @property
    def on_chip(self) -> bool:
        return self.storage.on_chip

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def free(self) -> int:
        """Elements of one partition (or of one row)."""
        return math.prod(self.shape[1:])

    def __repr__(self) -> str:
        return f"<{self.buffer} {self.dtype}{list(self.shape)}>"

    def _view(self, shape: Any, strides: Any, offset: int | None = None, dynamic: bool = False) -> Self:
        at = self.offset if offset is None else offset
        return type(self)(self.storage, shape, strides, at, self.dtype, self.rows, self.dynamic or dynamic)

    # Views -----------------------------------------------------------------------------------------------------

    def is_indirect(self) -> bool:
        return self.dynamic

    def get_pattern(self) -> list[list[int]]:
        return [[stride, count] for stride, count in zip(self.strides, self.shape, strict=True)]

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        for value in (start, end, step):
            if isinstance(value, VirtualRegister):
                refuse("dynamic", "a slice with a register: use .ap(scalar_offset=...) or select")
        if not (0 <= start < end <= self.shape[dim]) or step < 1:
            refuse("outside", f"slice {start}:{end}:{step} of dimension {dim} with size {self.shape[dim]}")
        if dim == 0 and self.rows is not None:
            refuse("shape", "a slice of the dimension that an index picks")
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = -(-(end - start) // step), self.strides[dim] * step
        return self._view(shape, strides, self.offset + start * self.strides[dim])

    def select(self, dim: int, index: Any) -> NkiTensor:
        if isinstance(index, (NkiTensor, VirtualRegister)):
            dim = self._not_partition(dim, "a run-time choice") if self.on_chip else dim
            at = scalar(index)
            if self.dynamic:
                refuse("dynamic", "a second run-time index on one view")
        else:
            at = int(index)
        if not 0 <= at < self.shape[dim]:
            refuse("outside", f"index {at} of dimension {dim} with size {self.shape[dim]}")
        dynamic = isinstance(index, (NkiTensor, VirtualRegister))
        offset = self.offset + at * self.strides[dim]
        if dim == 0 and self.on_chip:
            return self._view((1, *self.shape[1:]), self.strides, offset)
        shape, strides = list(self.shape), list(self.strides)
        del shape[dim], strides[dim]
        return self._view(shape, strides, offset, dynamic)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        if dim != 0:
            refuse("shape", f"vector_select of dimension {dim}: only 0")
        pattern = [[self.strides[0], vector_offset.shape[0]], *self.get_pattern()[1:]]
        return self.ap(pattern, vector_offset=vector_offset)

    def __getitem__(self, key: Any) -> NkiTensor:
        keys = list(key) if isinstance(key, tuple) else [key]
        if Ellipsis in [k for k in keys if k is Ellipsis]:
            at = next(i for i, k in enumerate(keys) if k is Ellipsis)
            keys[at : at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        if len(keys) > self.ndim:
            refuse("outside", f"{len(keys)} indices for a tensor of {self.ndim} dimensions")
        view, dim = self, 0
        for item in keys:
            size = view.shape[dim]
            if isinstance(item, DynamicSlice):
                if isinstance(item.start, VirtualRegister):
                    refuse("dynamic", "nl.ds with a register: use .ap(scalar_offset=...)")
                view = view.slice(dim, item.start, item.start + item.size)
            elif isinstance(item, slice):
                start, end = (_bound(v, d, size) for v, d in ((item.start, 0), (item.stop, size)))
                if (start, end, item.step) != (0, size, None):
                    view = view.slice(dim, start, end, 1 if item.step is None else item.step)
            elif isinstance(item, (int, np.integer, VirtualRegister, NkiTensor)):
                item = item + size if isinstance(item, int) and item < 0 else item
                before = view.ndim
                view = view.select(dim, item)
                dim -= before - view.ndim
            else:
                refuse("supported", f"an index of type {type(item).__name__}")
            dim += 1
        return view

    def view(self, dtype: str) -> NkiTensor:
        if numerics.size(dtype) != numerics.size(self.dtype):
            refuse("supported", f"a view of {self.dtype} as {dtype}: only dtypes of one size")
        return NkiTensor(self.storage, self.shape, self.strides, self.offset, dtype, self.rows, self.dynamic)

    def ap(
        self,
        pattern: Any,
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: str | None = None,
    ) -> NkiTensor:
        """An access pattern of [stride, count] pairs over the storage. Call it on whole tensors only."""
        if scalar_offset is not None and vector_offset is not None:
            refuse("dma", "scalar_offset and vector_offset on one view")
        if self.dynamic and (scalar_offset is not None or vector_offset is not None):
            refuse("dynamic", "a second run-time index on one view")
        strides, shape = (tuple(int(pair[i]) for pair in pattern) for i in (0, 1))
        if self.on_chip and shape[0] > 1 and strides[0] != math.prod(self.storage.shape[1:]):
            refuse("shape", f"the first stride {strides[0]}: on chip it is the free size of the storage")
        at = self.offset + (offset or 0)
        step = math.prod(self.shape[indirect_dim + 1 :])
        rows = None
        if scalar_offset is not None:
            if self.on_chip and indirect_dim == 0:
                refuse("dynamic", "a run-time index of the partition dimension")
            at += scalar(scalar_offset) * step
        if vector_offset is not None:
            if self.on_chip or indirect_dim != 0:
                refuse("dma", "vector_offset: only on HBM tensors and dimension 0")
            if vector_offset.buffer != "sbuf" or vector_offset.dtype not in ("int32", "uint32"):
                refuse("dtype", f"vector_offset of {vector_offset}: (P, 1) int32 or uint32 in SBUF")
            if vector_offset.free != 1 or vector_offset.shape[0] != shape[0]:
                refuse("shape", f"vector_offset of {vector_offset} for a pattern of {shape[0]} rows")
            rows = Rows(vector_offset.read().reshape(-1).astype(np.int64), step, self.shape[0])
        dynamic = scalar_offset is not None
        return NkiTensor(self.storage, shape, strides, at, dtype or self.dtype, rows, dynamic)

    # What instructions use -------------------------------------------------------------------------------------

    def _array(self, flat: np.ndarray) -> np.ndarray:
        """The view over a flat array of the storage's elements (values, or their states)."""
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        if self.offset < 0 or last >= flat.size:
            refuse("outside", f"elements {self.offset} to {last} of {list(self.storage.shape)}")
        size = flat.itemsize
        return np.ndarray(self.shape, flat.dtype, flat, self.offset * size, [s * size for s in self.strides])

    def values(self) -> np.ndarray:
        """The elements, no copy, nothing checked but the bounds. Not for rows picked by an index."""
        array = self._array(self.storage.data)
        return array if self.dtype == self.storage.dtype else array.view(numerics.DTYPES[self.dtype])

    def picked(self) -> np.ndarray:
        """(rows, elements): the place in the storage of every element of a view with picked rows, unchecked."""
        assert self.rows is not None
        inner = spread(self.get_pattern()[1:])
        return self.offset + self.rows.index[:, None] * self.rows.step + inner

    def read(self) -> np.ndarray:
        """The elements, for an instruction: refused where one was never written."""
        storage = self.storage
        machine().used(storage, self.offset, writes=False)
        if storage.state is not None:
            state = self._array(storage.state)
            if state.size and state.min() == 0:
                refuse("unwritten", f"reads {self}, made at {storage.where}, where nothing was ever written")
            if not storage.on_chip:
                state[...] = np.where(state == WRITTEN, READ, state)
        return self.values()

    def write(self, values: np.ndarray, *, by_matmul: bool = False) -> None:
        """Round to the dtype and store, for an instruction."""
        storage = self.storage
        machine().used(storage, self.offset, writes=True)
        target = self.values()
        target[...] = numerics.down(values, self.dtype).reshape(target.shape)
        if storage.state is not None:
            self._array(storage.state)[...] = WRITTEN
        if storage.by_matmul is not None:
            self._array(storage.by_matmul)[...] = MATMUL if by_matmul else NOT_MATMUL
        if storage.address is not None:
            machine().overlay(storage)


def spread(pattern: Any) -> np.ndarray:
    """The offset of every element of [[step, count], ...], the last pair fastest."""
    places = np.zeros(1, np.int64)
    for step, count in pattern:
        places = (places[:, None] + np.arange(count) * step).reshape(-1)
    return places


def _bound(value: Any, default: int, size: int) -> Any:
    if value is None:
        return default
    return value + size if isinstance(value, int) and value < 0 else value


def scalar(value: Any) -> int:
    """A run-time number: a register, or an integer tensor of one element on chip."""
    if isinstance(value, NkiTensor):
        if value.size != 1 or value.dtype not in numerics.INTEGERS:
            refuse("dynamic", f"{value} as a run-time number: one integer")
        return int(value.read().reshape(-1)[0])
    return value.read() if isinstance(value, VirtualRegister) else int(value)


def whole(storage: Storage) -> NkiTensor:
    """The tensor of all of a storage."""
    steps = [math.prod(storage.shape[i + 1 :]) for i in range(len(storage.shape))]
    return NkiTensor(storage, storage.shape, tuple(steps))
