"""A sharded tensor's part on this process, and a parameter's name whatever it is wrapped in."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")


def bare(name: str) -> str:
    """A parameter's name without what checkpointing and compiling put into it."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's values: the tensor itself where it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def box(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """(this process's values, where they begin in the whole)."""
    if not isinstance(tensor, DTensor):
        return tensor, (0,) * tensor.dim()
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), tuple(offset)
