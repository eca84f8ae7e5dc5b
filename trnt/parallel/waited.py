"""Waiting for a collective without losing its gradient.

`torch.distributed.tensor.experimental.local_map`, in which torchtitan runs routed experts and attention, waits for an
input that is still being gathered. What `AsyncCollectiveTensor.wait` gives back has no history (pytorch#151240, open):
under tensor parallelism without expert parallelism the experts' gradient of their input was lost wherever a gather
needed no copy, with one row a pass or a microbatch. The loss of the first step looked right.
"""

from __future__ import annotations

from typing import Any

import torch

from trnt import device

device.ensure()

from torch.distributed._functional_collectives import AsyncCollectiveTensor

wait = AsyncCollectiveTensor.wait


class Waited(torch.autograd.Function):
    """The tensor itself, there at last."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> torch.Tensor:
        return wait(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def waited(tensor: Any) -> torch.Tensor:
    """The tensor that the collective gives, with the history of `tensor` where it has one."""
    return Waited.apply(tensor) if tensor.requires_grad and torch.is_grad_enabled() else wait(tensor)


def keep_history() -> None:
    """Let `AsyncCollectiveTensor.wait` hand gradients on."""
    AsyncCollectiveTensor.wait = waited
