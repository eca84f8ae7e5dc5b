"""Several trainings in the same processes, each parameter's first gradient and last values kept: gradients.py JOBS.

JOBS: a JSON file, a list of {"folder": where they go, "words": the words after `trnt`, "stop": the step after which a
signal comes, "saved_again": the step as which a resumed state is saved as it was loaded}; the last two may be left out.
Process r writes grads-r.pt and weights-r.pt with the whole tensors of its pipeline stages, and traffic-r.json with what
it sent in the second step, by process group. A launcher's store cannot be joined twice under the same names: every
training gets its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from trnt import device

device.ensure("cpu")

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from trnt.checkpoint.manager import Checkpointer
from trnt.cli import main
from trnt.parallel.parts import bare
from trnt.parallel.traffic import Counting, groups
from trnt.report import Report
from trnt.trainer import Trainer

clip, train, step, load = Trainer._clip, Trainer.train, Trainer.train_step, Checkpointer.load
job: dict[str, Any] = {}


def keep(trainer: Any, name: str, what: Any) -> None:
    held = {}
    for part in trainer.model_parts:
        for key, parameter in part.named_parameters():
            value = what(parameter).detach()
            held[bare(key)] = (value.full_tensor() if isinstance(value, DTensor) else value).clone()
    torch.save(held, Path(job["folder"]) / f"{name}-{dist.get_rank()}.pt")


def noting(self: Any) -> Any:
    """Gather, save, then clip as always."""
    if self.step == 1:
        keep(self, "grads", lambda parameter: parameter.grad)
    return clip(self)


def to_the_end(self: Any) -> None:
    train(self)
    keep(self, "weights", lambda parameter: parameter)


def loading(self: Any, *args: Any, **options: Any) -> Any:
    found = load(self, *args, **options)
    if "saved_again" in job:
        self.save(job["saved_again"], last_step=True)
    return found


def stepping(self: Any, batches: Any) -> None:
    counting = Counting()
    with counting if self.step == 2 else nullcontext():
        step(self, batches)
    if self.step == 2:
        found = [(*key, count.calls, count.sent_bytes) for key, count in counting.found.items()]
        kept = {"groups": groups(self.parallel_dims), "found": found}
        (Path(job["folder"]) / f"traffic-{dist.get_rank()}.json").write_text(json.dumps(kept))
    if self.step == job.get("stop"):
        signal.raise_signal(signal.SIGTERM)


Report.picture = lambda self: None  # type: ignore[method-assign]  # nobody looks at it, and it takes a second
Checkpointer.load = loading  # type: ignore[method-assign]
Trainer.train_step = stepping  # type: ignore[method-assign]
Trainer._clip = noting  # type: ignore[method-assign]
Trainer.train = to_the_end  # type: ignore[method-assign]
join, rank, world_size = dist.init_process_group, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world_size)
for number, found in enumerate(json.loads(Path(sys.argv[1]).read_text())):
    job = found
    sys.argv = ["trnt", *job["words"]]
    own = dist.PrefixStore(f"training-{number}", store)
    dist.init_process_group = partial(join, store=own, rank=rank, world_size=world_size)
    try:
        main()
    except SystemExit as done:
        if done.code not in (0, 143 if "stop" in job else 0):
            raise
