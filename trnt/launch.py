"""Running a resolved training: one process, in this process. Many processes come through torchrun's environment."""

from __future__ import annotations

import gc
import os
import socket
from typing import Any


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
        for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            if key not in before:
                os.environ.pop(key, None)
