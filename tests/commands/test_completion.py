"""Completion scripts are those the code makes, and they answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_committed_scripts_are_the_generated_ones(trnt: Run, shell: str) -> None:
    done = trnt("completion", shell)
    assert done.returncode == 0
    assert (ROOT / "completions" / f"trnt.{shell}").read_text() == done.stdout


def test_another_shell_is_a_usage_error(trnt: Run) -> None:
    done = trnt("completion", "bsh")
    assert done.returncode == 2
    assert "did you mean 'bash'?" in done.stderr


@pytest.mark.parametrize(("words", "expected"), [("trnt do", "doctor"), ("trnt train --warm", "--warmup")])
def test_bash_gets_its_words(tmp_path: Path, words: str, expected: str) -> None:
    program = tmp_path / "trnt"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m trnt "$@"\n')
    program.chmod(0o755)
    parts = words.split()
    script = (
        f"source {ROOT}/completions/trnt.bash; COMP_WORDS=({words}); COMP_CWORD={len(parts) - 1}; "
        f'_trnt_completion trnt {parts[-1]} {parts[-2]}; echo "${{COMPREPLY[@]}}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == [expected], done.stderr
