"""Running a resolved training: one process, in this process. Many processes come through torchrun's environment.

What decides about files (which run to go on with, what fits in memory, who writes run.json) is decided by process 0
and told to the others: two that look for themselves see each other's half-written folders.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from trnt.errors import TrntError

T = TypeVar("T")


def world_size() -> int:
    """Processes of this training, as the launcher's environment says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launched() -> bool:
    """Whether a launcher started this process: trnt's own, torchrun or a cluster's."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def rank() -> int:
    """This process's number."""
    return int(os.environ.get("RANK", "0")) if world_size() > 1 else 0


@contextmanager
def joined(comm: Any) -> Iterator[None]:
    """The process group of a launcher's processes, for the decisions before a trainer is built; nothing for one.

    comm: torchtitan's `CommConfig`. torchtitan's trainer finds the group and takes it.
    """
    import torch.distributed as dist

    if world_size() == 1:
        yield
        return
    from torchtitan.distributed.utils import init_distributed

    init_distributed(comm)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def shared(decide: Callable[[], T]) -> T:
    """What process 0 decides, on every process. Raises on all what it raises on the first (TrntError)."""
    if world_size() == 1:
        return decide()
    import torch.distributed as dist

    told: list[Any] = [None]
    if rank() == 0:
        try:
            told = [(decide(), None)]
        except TrntError as error:
            told = [(None, (error.cause, error.fix, error.exit_code))]
    dist.broadcast_object_list(told, 0)
    found, failed = told[0]
    if failed is not None:
        raise TrntError(*failed)
    return found


def free_port() -> int:
    """A TCP port on loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(config: Any) -> Any:
    """Build the trainer of a `Trainer.Config`, train, close. Returns the trainer, its process group gone.

    Raises what training raises (TrntError for what a user can cause); everything is closed all the same.
    """
    import torch.distributed as dist

    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    before = dict(os.environ)
    for key, value in alone.items():
        os.environ.setdefault(key, value)
    os.environ.setdefault("MASTER_PORT", str(free_port()))
    # torchtitan warns when a pipeline's loss is not shown by the process that computes it; here process 0 is told it.
    os.environ.setdefault("LOG_RANK", ",".join(map(str, range(world_size()))))
    trainer = None
    try:
        trainer = config.build()
        trainer.train()
        return trainer
    finally:
        if trainer is not None:
            trainer.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.enable()  # torchtitan's trainer switches the collector off
        for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOG_RANK"):
            if key not in before:
                os.environ.pop(key, None)
