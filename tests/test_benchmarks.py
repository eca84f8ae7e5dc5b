"""The benchmarks are scripts that say what they do; what they measure is no test."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_explains_itself(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"python benchmarks/{script.name}" in done.stdout


def test_performance_names_every_benchmark() -> None:
    text = (Path(__file__).parent.parent / "docs" / "performance.md").read_text()
    assert not [script.name for script in SCRIPTS if script.name not in text]


@pytest.mark.slow
def test_the_contenders_of_a_training_step_are_the_same_step() -> None:
    """They reach into trnt's and torchtitan's trainers, which change. transformers starts from other random weights."""
    script = next(script for script in SCRIPTS if script.stem == "train_cpu")
    losses = {}
    for name in ("trnt", "trnt --compile inductor", "transformers", "torchtitan"):
        command = [sys.executable, str(script), "--contender", name, "--model", "dense", "--steps", "5"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        losses[name] = json.loads(done.stdout.splitlines()[-1])["losses"]
    for same in (
        "trnt --compile inductor",
        "torchtitan",
    ):  # the same seed and weights; sums in another order, five updates
        assert losses[same] == pytest.approx(losses["trnt"], rel=1e-4), same
    # every start guesses; each step reads other text, so that one step's fall (0.1 to 0.2) may drown: five fall by 0.6
    assert all(abs(loss[0] - math.log(2048)) < 0.3 and loss[-1] < loss[0] - 0.3 for loss in losses.values()), losses


@pytest.mark.slow
@pytest.mark.skipif("SMOLLM2" not in os.environ, reason="opt in: SMOLLM2=FOLDER, pip install 'trnt[smollm2]', 93 MB")
def test_a_released_model_goes_through_everything() -> None:
    """The script itself compares both backends, held-out losses and the loaded keys, and fails where they are wrong."""
    script = next(script for script in SCRIPTS if script.stem == "smollm2")
    command = [sys.executable, str(script), "--work", os.environ["SMOLLM2"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
