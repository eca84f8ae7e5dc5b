"""Pipeline parallelism through torchtitan's `pipeline_llm`: what a stage needs that its schedule does not hand on."""

from __future__ import annotations

from typing import Any

from trnt import device

device.ensure()

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
