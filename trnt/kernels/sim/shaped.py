"""A view's dimensions in another order, split, merged, added or removed: strides change, and nothing is copied.

On chip the partition, dimension 0, is never permuted, split, merged or broadcast.
"""

from __future__ import annotations

import math
from typing import Any, Self

from trnt.kernels.sim.refusal import refuse


class Shaped:
    """What `NkiTensor` can do with its shape alone."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    rows: Any
    on_chip: Any
    ndim: Any
    size: Any

    def _view(self, shape: Any, strides: Any) -> Self:
        raise NotImplementedError

    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in reversed(list(zip(self.shape, self.strides, strict=True))[1 if self.on_chip else 0 :]):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def _not_partition(self, dim: int, what: str) -> int:
        dim = dim + self.ndim if dim < 0 else dim
        if not 0 <= dim < self.ndim:
            refuse("outside", f"dimension {dim} of a tensor of {self.ndim}")
        if dim == 0 and (self.on_chip or self.rows is not None):
            refuse("shape", f"{what} of the partition dimension")
        return dim

    def permute(self, dims: tuple[int, ...]) -> Self:
        if sorted(dims) != list(range(self.ndim)):
            refuse("shape", f"permute{tuple(dims)} of {self.ndim} dimensions")
        if (self.on_chip or self.rows is not None) and dims[0] != 0:
            refuse("shape", "a permutation of the partition dimension")
        return self._view([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def broadcast(self, dim: int, size: int) -> Self:
        dim = self._not_partition(dim, "a broadcast")
        if self.shape[dim] != 1:
            refuse("shape", f"a broadcast of dimension {dim} with size {self.shape[dim]}")
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = size, 0
        return self._view(shape, strides)

    def expand_dim(self, dim: int) -> Self:
        if dim == 0 and (self.on_chip or self.rows is not None):
            refuse("shape", "a new dimension before the partition")
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(dim, 1)
        strides.insert(dim, 1)
        return self._view(shape, strides)

    def squeeze_dim(self, dim: int) -> Self:
        dim = self._not_partition(dim, "a removal")
        if self.shape[dim] != 1:
            refuse("shape", f"a removal of dimension {dim} with size {self.shape[dim]}")
        return self._view(self.shape[:dim] + self.shape[dim + 1 :], self.strides[:dim] + self.strides[dim + 1 :])

    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> Self:
        dim = self._not_partition(dim, "a split")
        sizes = inferred(tuple(shape), self.shape[dim])
        steps = [self.strides[dim] * math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        return self._view(
            (*self.shape[:dim], *sizes, *self.shape[dim + 1 :]),
            (*self.strides[:dim], *steps, *self.strides[dim + 1 :]),
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> Self:
        start = self._not_partition(start_dim, "a merge")
        view = self
        for _ in range(end_dim - start):
            if view.strides[start] != view.strides[start + 1] * view.shape[start + 1]:
                refuse("shape", f"a merge of dimensions {start_dim} to {end_dim}, which do not lie together in memory")
            view = view._view(
                (*view.shape[:start], view.shape[start] * view.shape[start + 1], *view.shape[start + 2 :]),
                (*view.strides[:start], *view.strides[start + 1 :]),
            )
        return view

    def reshape(self, shape: tuple[int, ...]) -> Self:
        keep = 1 if self.on_chip or self.rows is not None else 0
        sizes = inferred(tuple(shape), self.size)
        if keep and sizes[0] != self.shape[0]:
            refuse("shape", f"reshape to {sizes}: the partition dimension stays {self.shape[0]}")
        if not self.is_contiguous():
            refuse("shape", f"reshape to {sizes} of a view that does not lie together in memory")
        steps = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        if keep:
            steps[0] = self.strides[0]
        return self._view(sizes, steps)

    def rearrange(self, src_pattern: tuple, dst_pattern: tuple, fixed_sizes: dict[str, int] | None = None) -> Self:
        view = self
        names: list[str] = []
        for part in src_pattern:
            group = (part,) if isinstance(part, str) else tuple(part)
            if len(group) > 1:
                view = view.reshape_dim(len(names), tuple((fixed_sizes or {}).get(name, -1) for name in group))
            names += list(group)
        wanted = [name for part in dst_pattern for name in ((part,) if isinstance(part, str) else part)]
        view = view.permute(tuple(names.index(name) for name in wanted))
        for dim, part in enumerate(dst_pattern):
            if not isinstance(part, str) and len(part) > 1:
                view = view.flatten_dims(dim, dim + len(part) - 1)
        return view


def inferred(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    known = math.prod(n for n in shape if n != -1)
    sizes = tuple(count // known if n == -1 else n for n in shape)
    if math.prod(sizes) != count:
        refuse("shape", f"{count} elements as {shape}")
    return sizes
