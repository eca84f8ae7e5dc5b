"""Trainings in one launch of several processes, for tests that compare layouts. The programme: gradients.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "gradients.py"
ROWS = 4  # of a step, over all processes
DDP = ("--dp-replicate", "2")
HSDP = ("--dp-replicate", "2", "--dp-shard", "2")
TP, CP, EP, PP = (("--" + name, "2") for name in ("tp", "cp", "ep", "pp"))
SIMPLE = ("--fsdp", "simple")
INTERLEAVED = ("--pp-schedule", "Interleaved1F1B")
FILLED = ("--debug.deterministic", "true")  # torch fills memory that nobody wrote with NaN


def job(place: Path, model: str, sharing: int, words: tuple[str, ...], **more: Any) -> dict[str, Any]:
    """A training of five steps in `place`/run, by processes of which `sharing` have rows of their own."""
    place.mkdir(exist_ok=True)
    usual = ("--steps", "5", "--seq-len", "64", "--batch-size", str(ROWS // sharing), "--seed", "1")
    return {
        "folder": str(place),
        "words": ("train", "--model", model, "--out", str(place / "run"), *usual, *words),
        **more,
    }


def launch(jobs: list[dict[str, Any]], processes: int, file: Path) -> None:
    """Run them, one after the other. file: where the programme finds them."""
    file.write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += [str(PROGRAM), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr


def rows(place: Path) -> list[dict[str, Any]]:
    """What a training logged, a row for each step."""
    return [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
