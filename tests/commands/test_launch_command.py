"""`trnt launch`: options are checked before a file is written, and nothing is overwritten."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., subprocess.CompletedProcess[str]]
BIG = ("--nnodes", "4", "--model", "qwen3-8b", "--tp", "4", "--out", "/shared/big")


def test_the_script_holds_the_words_and_is_not_overwritten(trnt: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    words = ("launch", "--cluster", "slurm", *BIG, "--training.max_norm", "0.5", "--no-shuffle", "--file", str(file))
    done = trnt(*words, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["nnodes"], told["nproc"]) == (4, 64)
    text = file.read_text()
    assert "--nnodes 4 --nproc 64 --node-rank $SLURM_NODEID" in text
    assert "--model qwen3-8b --no-shuffle --tp 4 --out /shared/big --training.max_norm 0.5" in text
    assert file.stat().st_mode & 0o100
    again = trnt(*words)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert trnt(*words, "--replace").returncode == 0


def test_what_cannot_be_is_named_before_anything_is_written(trnt: Run, tmp_path: Path) -> None:
    file = str(tmp_path / "job")
    for words, said in (
        (("--cluster", "slurn", *BIG), "slurm"),
        (("--cluster", "slurm", *BIG, "--pp", "3"), "does not divide the 256 processes"),
        (("--cluster", "slurm", *BIG, "--instance", "trn1.32xlarge"), "TorchNeuron needs Trn2 or Trn3"),
        (("--cluster", "slurm", *BIG, "--tp", "8"), "goes across chips: one has 4 cores"),
        (("--cluster", "slurm", *BIG, "--batch-sise", "3"), "--batch-size"),
        (("--cluster", "slurm", "--model", "qwen3-8b"), "--out"),
        (("--cluster", "ssh", *BIG), "--hosts"),
        (("--cluster", "k8s", *BIG), "--image"),
    ):
        here = {"NEURON_LOGICAL_NC_CONFIG": "1"}  # this machine's, not that of the machines it writes for
        done = trnt("launch", *words, "--file", file, env=here)
        assert done.returncode == 2, words
        assert said in done.stderr
        assert "fix:" in done.stderr
        assert not Path(file).exists()


def test_stdout_and_the_help(trnt: Run) -> None:
    done = trnt("launch", "--cluster", "slurm", *BIG, "--file", "-")
    assert done.stdout.startswith("#!/bin/bash")
    shown = trnt("launch", "--help").stdout
    assert "--cluster" in shown
    assert "--seq-len" not in shown  # trnt train's options are taken, and its help shows them
