"""The trainer's checkpoints: torchtitan's manager, made so that a step folder is never half there.

A step is written as `step-N.partial`, synced, then renamed to `step-N`. The newest step is the highest `step-N` that
is complete; others are skipped and named. `step-N.anything` is never taken for a step, nor deleted.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import CheckpointException

from trnt import device

device.ensure()

from torchtitan.components.checkpointer.dcp import AsyncMode, CheckpointManager

from trnt import console
from trnt.checkpoint.dcp import complete
from trnt.checkpoint.written import sync_folder
from trnt.errors import TrntError
from trnt.runs import steps


def newest_step(folder: Path) -> tuple[int, Path] | None:
    """The highest complete step in a run's checkpoint folder; incomplete ones above it are named in a warning."""
    for number, path in reversed(steps(folder).items()):
        reason = complete(path)
        if reason is None:
            return number, path
        console.warn(f"skipping the incomplete checkpoint {path}: {reason}")
    return None


class Checkpointer(CheckpointManager):
    """torchtitan's DCP manager with atomic saves, exact step names and errors of one line."""

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        pass

    def dcp_save(self, state_dict: dict[str, Any], checkpoint_id: str, async_mode: Any, **options: Any) -> Any:
        """Write under a temporary name, sync, rename. An older folder of the same step is kept until then.

        Raises TrntError when the disk is full or the folder cannot be written; nothing is left behind then.
        Asynchronous modes write in place; their unfinished folders are recognised as incomplete.
        """
        if async_mode != AsyncMode.DISABLED:
            return super().dcp_save(state_dict, checkpoint_id, async_mode, **options)
        final = Path(checkpoint_id)
        partial = final.with_name(final.name + ".partial")
        first = dist.get_rank() == 0
        if first and partial.exists():
            shutil.rmtree(partial)
        dist.barrier()
        try:
            result = super().dcp_save(state_dict, str(partial), async_mode, **options)
        except (CheckpointException, OSError) as error:
            if first:
                shutil.rmtree(partial, ignore_errors=True)
            raise TrntError(
                f"could not save {final}: {root_cause(error)}",
                "free some disk space or choose another --out; the checkpoints already there are untouched",
            ) from error
        if first:
            sync_folder(partial)
            old = final.with_name(final.name + ".old")
            if final.exists():
                os.replace(final, old)
            os.replace(partial, final)
            shutil.rmtree(old, ignore_errors=True)
            sync_folder(final)
        dist.barrier()
        return result

    def dcp_load(self, state_dict: dict[str, Any], checkpoint_id: str, from_hf: bool, from_quantized: bool) -> None:
        """As torchtitan's; a checkpoint that does not fit this run is one line."""
        try:
            super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
        except CheckpointException as error:  # a BaseException: `except Exception` would let it through
            raise TrntError(
                f"the checkpoint {checkpoint_id} does not fit this run: {root_cause(error)}",
                "use the options the run was started with, or --resume never with a new --out",
            ) from error

    def _find_load_step(self, folder: str = "") -> int:
        newest = newest_step(Path(folder or self.folder))
        return newest[0] if newest else -1

    def _purge_stale_checkpoints(self) -> None:
        if self._should_purge():
            for path in list(steps(Path(self.folder)).values())[: -self.keep_latest_k]:
                self.purge_queue.put(str(path))


def root_cause(error: BaseException) -> str:
    """The first line of the innermost reason; a CheckpointException holds one failure per rank."""
    failures = getattr(error, "failures", None)
    if failures:
        inner = next(iter(failures.values()))
        error = inner[0] if isinstance(inner, tuple) else inner
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
