"""The benchmarks are scripts that say what they do; what they measure is no test."""

from __future__ import annotations

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
