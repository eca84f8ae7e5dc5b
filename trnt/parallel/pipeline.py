"""Pipeline parallelism through torchtitan's `pipeline_llm`: what a stage needs that its schedule does not hand on."""

from __future__ import annotations

from typing import Any

from trnt import device

device.ensure()

import torch

from trnt.parallel import context


def make_masks(part: Any, cp_mesh: Any = None) -> None:
    """Let a stage make its own document boundaries from the positions of the microbatch that it gets.

    torch's schedules cut tensors by rows; boundaries are a list over all rows.
    """

    def before(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positions = options["positions"]
        if cp_mesh is not None:
            positions = context.whole(positions, cp_mesh)
        return args, {**options, "attention_masks": module.get_attention_masks(positions=positions)}

    part.register_forward_pre_hook(before, with_kwargs=True)


def leave_no_trace(schedule: Any, parts: list[Any], loss: Any) -> None:
    """Take back what a schedule's search for shapes leaves in its stages: gradients and counts.

    Before the first microbatch, torch 2.13 and 2.14 run every stage forward and backward on memory that nobody wrote.
    They ask for gradients of inputs only, but a loss in chunks has a backward of its own, which reaches the head where
    FSDP2 does not hold it back (NaN there under SimpleFSDP), and experts count the tokens that they are given.
    Meanwhile a `ChunkedLoss` does not leave the head's gradient to the schedule: it would be the first step's.
    """
    search = schedule._initialize_pp_stages

    def searched(stages: Any, *args: Any, **options: Any) -> Any:
        buffers = [buffer for part in parts for buffer in part.buffers()]
        parameters = [parameter for part in parts for parameter in part.parameters()]
        before = [buffer.clone() for buffer in buffers]
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        pipelined, loss.pipelined = loss.pipelined, False
        found = search(stages, *args, **options)
        loss.pipelined = pipelined
        schedule._initialize_pp_stages = search
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return found

    schedule._initialize_pp_stages = searched
