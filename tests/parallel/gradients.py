"""Several trainings in the same processes, each parameter's whole gradient of the first step kept: gradients.py JOBS.

JOBS: a JSON file, a list of {"file": where the gradients go, "words": the words after `trnt`, "port": of its store}.
A launcher's store cannot be joined twice.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from trnt import device

device.ensure("cpu")

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from trnt.cli import main
from trnt.parallel.parts import bare
from trnt.trainer import Trainer

clip = Trainer._clip
job: dict[str, Any] = {}


def noting(self: Any) -> Any:
    """Gather, save on process 0, then clip as always."""
    if self.step == 1:
        held = {}
        for part in self.model_parts:
            for name, parameter in part.named_parameters():
                grad = parameter.grad
                held[bare(name)] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone()
        if dist.get_rank() == 0:
            torch.save(held, job["file"])
    return clip(self)


Trainer._clip = noting  # type: ignore[method-assign]
for found in json.loads(Path(sys.argv[1]).read_text()):
    job = found
    sys.argv = ["trnt", *job["words"]]
    os.environ |= {"MASTER_PORT": str(job["port"]), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    try:
        main()
    except SystemExit as done:
        if done.code:
            raise
