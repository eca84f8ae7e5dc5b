"""The global gradient norm of a sharded model: a process adds up its own values, a mesh what is spread over it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from trnt import device

device.ensure()

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from trnt.kernels import norms
from trnt.parallel.parts import local


@torch.no_grad()
def clip(parameters: Iterable[torch.Tensor], max_norm: float, pp_mesh: Any = None) -> torch.Tensor:
    """The 2-norm of all gradients of all processes, () fp32; they are scaled so that it is at most `max_norm`."""
    held = list(parameters)
    total = squares(held)
    if pp_mesh is not None:
        dist.all_reduce(total, group=pp_mesh.get_group())
    norm = total.sqrt().float()
    scale = max_norm / (norm + 1e-6)
    if scale < 1:
        found = [local(parameter.grad) for parameter in held if parameter.grad is not None]
        torch._foreach_mul_(found, float(scale))
    return norm


def squares(parameters: list[torch.Tensor]) -> torch.Tensor:
    """The sum of squares over the processes of one pipeline stage. Replicated parts count once.

    A parameter's own layout says over which dimensions of which mesh it is spread, so that every process adds up the
    same groups in the same order, whether or not it has a gradient.
    """
    groups: dict[Any, list[torch.Tensor]] = {}
    for parameter in parameters:
        group = groups.setdefault(spread(parameter), [])
        if parameter.grad is not None:
            group.append(norms.of_rows(local(parameter.grad)))
    where = next((parameter.device for parameter in parameters), torch.device("cpu"))
    total = torch.zeros((), dtype=torch.float64 if where.type == "cpu" else torch.float32, device=where)
    for (mesh, dims), parts in groups.items():
        part = norms.squares(parts).to(total)
        for dim in dims:
            dist.all_reduce(part, group=mesh.get_group(dim))
        total += part
    return total


def spread(parameter: torch.Tensor) -> tuple[Any, tuple[int, ...]]:
    """(mesh, its dimensions over which this is cut); (None, ()) for a plain tensor."""
    if not isinstance(parameter, DTensor):
        return None, ()
    cut = tuple(dim for dim, placement in enumerate(parameter.placements) if not placement.is_replicate())
    return (parameter.device_mesh, cut) if cut else (None, ())
