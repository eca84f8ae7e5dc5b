"""Applying parallelism, activation checkpointing and compile to a model, through torchtitan's own functions."""

from __future__ import annotations

from typing import Any

from trnt import device

device.ensure()

from torch.distributed.fsdp import FSDPModule
from torchtitan.models.qwen3.parallelize import parallelize_qwen3


def parallelize(model: Any, *, parallel_dims: Any, training: Any, **options: Any) -> Any:
    """torchtitan's parallelize function, with FSDP left out where it would only copy.

    One process that computes in its parameters' own dtype needs no FSDP: on a mesh of one, FSDP copies every parameter
    in and every gradient out at each step. With mixed precision it stays, because FSDP does the casts.
    """
    casts = training.mixed_precision_param != training.dtype
    alone = parallel_dims.world_size == 1 and not casts
    return parallelize_qwen3(model, parallel_dims=parallel_dims, training=training, skip_dp=alone, **options)


def sum_gradients(model_parts: list[Any]) -> None:
    """Reduce gradients by plain sums: gloo has no PREMUL_SUM, which torchtitan's divide factor would ask for."""
    for part in model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
