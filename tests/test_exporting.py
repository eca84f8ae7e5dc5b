"""What a user may name to export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trnt import exporting, training
from trnt.errors import TrntError, UsageError


@pytest.fixture
def run(settings: Callable[..., Any], tmp_path: Path) -> Path:
    training.train(settings(steps=2, save_every=1, out=str(tmp_path / "runs" / "one")), as_json=False)
    return tmp_path / "runs" / "one"


def test_a_run_a_step_and_the_newest_run_are_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = run / "checkpoint" / "step-2"
    assert exporting.locate(str(run), "x") == (run, step)
    assert exporting.locate(str(run / "checkpoint" / "step-1"), "x") == (run, run / "checkpoint" / "step-1")
    assert exporting.locate(None, str(run.parent)) == (run, step)
    assert "newest run" in capsys.readouterr().err


def test_the_card_tells_the_exported_step_not_the_last(run: Path, tmp_path: Path) -> None:
    report = exporting.export_run(
        str(run / "checkpoint" / "step-1"), str(tmp_path / "hf"), runs_dir="x", dtype="float32", force=False
    )
    assert report["step_folder"].endswith("step-1")
    assert "steps: 1\n" in (tmp_path / "hf" / "README.md").read_text()


@pytest.mark.parametrize("place", ["", "checkpoint", "checkpoint/step-2"])
def test_a_destination_that_holds_the_run_is_refused_even_with_force(run: Path, place: str) -> None:
    with pytest.raises(UsageError, match="holds the run itself"):
        exporting.export_run(str(run), str(run / place), runs_dir="x", dtype="float32", force=True)
    assert (run / "checkpoint" / "step-2" / ".metadata").is_file()


def test_a_run_without_its_description_is_refused(run: Path, tmp_path: Path) -> None:
    (run / "run.json").unlink()
    with pytest.raises(TrntError, match=r"no run\.json"):
        exporting.export_run(str(run), str(tmp_path / "hf"), runs_dir="x", dtype="float32", force=False)
