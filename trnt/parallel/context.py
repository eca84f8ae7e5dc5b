"""Context parallelism: each process holds a part of every row's tokens; attention sees whole rows of some heads.

Before attention, the processes of the mesh exchange tokens for heads (all-to-all), after it they exchange back, as in
DeepSpeed-Ulysses (arXiv 2309.14509). The kernel sees whole rows, so packed documents, windows and sinks are masked as
on one process, and every process has the same work. torchtitan's own way, all keys and values on every process, knows
FlexAttention's block masks and CUDA's kernels only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from trnt import device

device.ensure()

from torch.distributed._functional_collectives import all_gather_tensor, all_to_all_single_autograd
from torchtitan.config import derive

from trnt.kernels.attention import Sinks


def part(x_BL: torch.Tensor, mesh: Any) -> torch.Tensor:
    """(B, L / cp): this process's tokens of each row, one stretch; all of them without a mesh."""
    if mesh is None:
        return x_BL
    return x_BL.chunk(mesh.size(), 1)[mesh.get_local_rank()].contiguous()


def whole(x_BL: torch.Tensor, mesh: Any) -> torch.Tensor:
    """(B, L) of every process's (B, L / cp); no gradient."""
    return torch.cat(list(all_gather_tensor(x_BL, 0, mesh.get_group()).chunk(mesh.size())), 1)


def to_heads(x_BLNH: torch.Tensor, mesh: Any) -> torch.Tensor:
    """(B, L / cp, N, H) of all heads -> (B, L, N / cp, H): whole rows of this process's heads.

    Fewer heads than processes are repeated: neighbouring processes get the same.
    """
    ways = mesh.size()
    if x_BLNH.shape[2] < ways:
        x_BLNH = x_BLNH.repeat_interleave(ways // x_BLNH.shape[2], 2)
    parts = x_BLNH.unflatten(2, (ways, -1)).movedim(2, 0)  # (cp, B, L / cp, N / cp, H)
    return exchanged(parts, mesh).movedim(0, 1).flatten(1, 2)


def to_tokens(x_BLNH: torch.Tensor, mesh: Any) -> torch.Tensor:
    """(B, L, N / cp, H) -> (B, L / cp, N, H)."""
    parts = x_BLNH.unflatten(1, (mesh.size(), -1)).movedim(1, 0)
    return exchanged(parts, mesh).movedim(0, 2).flatten(2, 3)


def exchanged(parts: torch.Tensor, mesh: Any) -> torch.Tensor:
    """(cp, ...): part i goes to process i, and what process i sent becomes part i. Its gradient takes the way back."""
    parts = parts.contiguous()
    ones = [1] * mesh.size()
    return all_to_all_single_autograd(parts, ones, ones, mesh.get_group())


def spread(attention: Any, mesh: Any) -> None:
    """Let an inner attention compute on whole rows of its share of heads. Call it before `Module.parallelize`."""
    compute: Callable[..., torch.Tensor] = attention.forward

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        if isinstance(sinks := options.get("out_transform"), Sinks):
            options["out_transform"] = Sinks(sinks.sinks_H.chunk(mesh.size())[mesh.get_local_rank()])
        out = compute(*(to_heads(x, mesh) for x in (q, k, v)), **options)
        return to_tokens(out, mesh)

    attention.forward = forward


class Unseen:
    """A `ParallelDims` in which context parallelism is off: for torchtitan's functions, which would apply their own."""

    cp_enabled = False

    def __init__(self, dims: Any) -> None:
        self._dims = dims

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dims, name)


def unseen(model_config: Any) -> Any:
    """A model config that does not see the degree: torchtitan's refuses it beside any `VarlenAttention`."""
    kind = type(model_config)

    class Config(kind):  # type: ignore[misc, valid-type]
        def update_from_config(self, *, config: Any, **options: Any) -> None:
            parallelism = dataclasses.replace(config.parallelism, context_parallel_degree=1)
            kind.update_from_config(self, config=dataclasses.replace(config, parallelism=parallelism), **options)

    Config._owner = kind._owner
    return derive(model_config, Config)
