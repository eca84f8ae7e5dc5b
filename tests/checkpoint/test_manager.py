"""A step folder is never half there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException

from trnt import runs, training
from trnt.checkpoint.dcp import complete
from trnt.checkpoint.manager import newest_step, root_cause
from trnt.errors import TrntError

Settings = Callable[..., Any]


def test_old_steps_are_pruned_and_look_alikes_are_not(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoint"
    training.train(settings(steps=2, save_every=1), as_json=False)
    (folder / "step-1.backup").mkdir()
    (folder / "step-0-mine").mkdir()
    training.train(settings(steps=6, save_every=1), as_json=False)
    assert list(runs.steps(folder))[-2:] == [5, 6]
    assert (folder / "step-1.backup").is_dir()
    assert (folder / "step-0-mine").is_dir()
    assert newest_step(folder) == (6, folder / "step-6")


def test_a_failed_save_leaves_nothing_and_says_why(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = dcp.save

    def full_disk(state: Any, checkpoint_id: Any = None, **options: Any) -> Any:
        real(state, checkpoint_id=checkpoint_id, **options)
        if str(checkpoint_id).endswith("step-4.partial"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(dcp, "save", full_disk)
    with pytest.raises(TrntError, match="No space left") as caught:
        training.train(settings(steps=6, save_every=2), as_json=False)
    assert "untouched" in caught.value.fix
    folder = tmp_path / "run" / "checkpoint"
    assert sorted(p.name for p in folder.iterdir()) == ["step-2"]
    assert complete(folder / "step-2") is None


def test_a_checkpoint_of_another_model_is_one_line(settings: Settings, tmp_path: Path) -> None:
    training.train(settings(out=str(tmp_path / "a")), as_json=False)
    with pytest.raises(TrntError) as caught:
        training.train(settings(layers=2, out=str(tmp_path / "b"), resume=str(tmp_path / "a"), steps=5), as_json=False)
    assert "\n" not in caught.value.cause
    assert "does not fit" in caught.value.cause


def test_a_resume_on_other_data_is_refused(settings: Settings, tmp_path: Path) -> None:
    training.train(settings(out=str(tmp_path / "a")), as_json=False)
    other = tmp_path / "other.txt"
    other.write_text("Another text entirely, and long enough for a row of tokens. " * 20)
    with pytest.raises(TrntError):
        training.train(
            settings(data=str(other), out=str(tmp_path / "b"), resume=str(tmp_path / "a"), steps=5), as_json=False
        )


def test_the_root_of_nested_failures_is_found() -> None:
    inner = OSError("the disk")
    middle = RuntimeError("middle")
    middle.__cause__ = inner
    assert root_cause(CheckpointException("save", {0: (middle, None)})) == "the disk"  # type: ignore[dict-item]


@pytest.mark.slow
def test_a_run_killed_at_any_moment_resumes_to_the_same_losses(corpus: Path, tmp_path: Path) -> None:
    words = ["train", "--model", "qwen3-tiny", "--layers", "1", "--data", str(corpus), "--seq-len", "32"]
    words += ["--batch-size", "2", "--steps", "12", "--save-every", "1", "--device", "cpu", "--out"]

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "trnt", *words, str(out)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    assert start(tmp_path / "whole").wait(120) == 0
    killed = 0
    for after_rows in (2, 5, 9):
        process = start(tmp_path / "killed")
        metrics = tmp_path / "killed" / "metrics.jsonl"
        deadline = time.monotonic() + 90
        while process.poll() is None and time.monotonic() < deadline:
            if metrics.is_file() and len(metrics.read_bytes().splitlines()) >= after_rows:
                os.kill(process.pid, signal.SIGKILL)
                killed += 1
                break
            time.sleep(0.005)
        process.wait(60)
    assert killed == 3
    assert start(tmp_path / "killed").wait(120) == 0
    from trnt.runs import read_rows

    rows = [read_rows(tmp_path / name / "metrics.jsonl") for name in ("whole", "killed")]
    assert [(r["step"], r["loss"], r["grad_norm"]) for r in rows[0]] == [
        (r["step"], r["loss"], r["grad_norm"]) for r in rows[1]
    ]
