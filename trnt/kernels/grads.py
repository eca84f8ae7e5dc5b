"""Gradient buffers that stay: kernels write a weight's gradient in place, instead of handing out a fresh tensor.

Autograd hands out a new tensor per weight and step and adds it to `.grad`. For a large model on CPU that costs more
than the matmul: fresh memory is touched eight times slower than memory in use. An owned weight keeps its `.grad` for
good; the first write of a step overwrites it, later ones add. Only a plain weight of a single process can be owned:
FSDP and torch.compile want to see the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from trnt.kernels import matmul, norms

BLOCK = 1 << 20  # elements of the part through which a gradient in another dtype goes: 4 MiB of fp32 stay in cache


@dataclass
class Owner:
    """Mark on a weight whose gradient kernels write in place."""

    stale: bool = True
    """Whether the buffer still holds an earlier step's gradient."""
    norms: dict[int, torch.Tensor] | None = None
    """2-norms of the rows of this step's gradient by place, taken while they were in the cache; None: unknown."""
    sparse: bool = False
    """An embedding whose gradient is kept as the rows that were looked up; only `ReducedAdamW` takes that."""
    zero: set[int] = field(default_factory=set)
    """Experts whose part of the buffer is zero already: one that stays idle is not written again."""


def own(weight: torch.Tensor, dtype: torch.dtype | None = None, *, sparse: bool = False) -> None:
    """Mark a leaf weight. `dtype`: what its gradient is kept in (None: the weight's own)."""
    if dtype is not None and dtype != weight.dtype and not sparse:
        weight.grad_dtype = dtype
    weight.trnt_owner = Owner(sparse=sparse)


def owner(weight: torch.Tensor) -> Owner | None:
    """The mark, or None for a weight whose gradient autograd handles."""
    return getattr(weight, "trnt_owner", None)


def usable(weight: torch.Tensor) -> bool:
    """Whether a kernel may write this weight's gradient in place now."""
    return owner(weight) is not None and weight.requires_grad and not torch.compiler.is_compiling()


def buffer(weight: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """(`.grad`, whether to overwrite it), marked as written. Allocated at the first use."""
    mark = owner(weight)
    assert mark is not None
    if weight.grad is None:
        weight.grad = torch.empty_like(weight, dtype=getattr(weight, "grad_dtype", None) or weight.dtype)
        mark.zero.clear()
    stale, mark.stale = mark.stale, False
    mark.norms = {} if stale else None
    return weight.grad, stale


def reset(weights: Iterable[torch.Tensor], *, keep: bool = True) -> None:
    """Begin a step: owned gradients are kept but stale (or given back, with `keep` off), others are dropped."""
    for weight in weights:
        mark = owner(weight)
        if mark is None or mark.sparse or not keep:
            weight.grad = None
        if mark is not None:
            mark.stale = True


def settle(weights: Iterable[torch.Tensor]) -> None:
    """End of a step's backwards: an owned weight that got no gradient has the gradient zero, not an earlier one."""
    for weight in weights:
        mark = owner(weight)
        if mark is not None and mark.stale and weight.grad is not None:
            weight.grad.zero_()
            mark.stale, mark.norms = False, {}


def put_product(
    out_MN: torch.Tensor, a_TM: torch.Tensor, b_TN: torch.Tensor, *, overwrite: bool, mark: Owner | None = None
) -> None:
    """out = a^T b, or out += a^T b. The sum over T is in the dtype of a and b, whatever out is kept in.

    mark: of the weight whose gradient `out` is a part of, to note the part's norm.
    """
    rows = max(1, BLOCK // out_MN.shape[1])
    for begin in range(0, out_MN.shape[0], rows):
        part, a = out_MN[begin : begin + rows], a_TM[:, begin : begin + rows]
        if out_MN.dtype == a_TM.dtype and overwrite:
            product = torch.mm(a.T, b_TN, out=part)
        elif out_MN.dtype == a_TM.dtype:
            product = part.addmm_(a.T, b_TN)
        else:
            product = matmul.transposed_times(a, b_TN)
            if overwrite:
                part.copy_(product)
            else:
                part.add_(product)
        if overwrite and mark is not None and mark.norms is not None:
            mark.norms[part.storage_offset()] = norms.of_rows(product)


def norm_of(weight: torch.Tensor) -> torch.Tensor | None:
    """The 2-norm of an owned gradient, () fp32, where its parts' norms were noted in this step."""
    mark = owner(weight)
    if mark is None or not mark.norms:
        return None
    return norms.total(mark.norms[place] for place in sorted(mark.norms))
