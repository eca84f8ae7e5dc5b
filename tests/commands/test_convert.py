"""`trnt convert` as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_there_and_back_on_the_command_line(trnt: Run, released: Callable[..., Path], tmp_path: Path) -> None:
    source = released(experts=4)
    dry = trnt("convert", str(source), "out/dcp", "--dry-run", cwd=tmp_path)
    assert dry.returncode == 0, dry.stderr
    assert "nothing was written" in dry.stdout
    assert not (tmp_path / "out").exists()
    done = trnt("convert", str(source), "out/dcp", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["schema_version"], report["to"], report["verified"]) == (1, "dcp", "fast")
    back = trnt("convert", "out/dcp", "out/hf", "--verify", "full", "--shard-size", "300KB", cwd=tmp_path)
    assert back.returncode == 0, back.stderr
    assert len(list((tmp_path / "out" / "hf").glob("*.safetensors"))) > 1
    same = trnt("verify", "out/hf", "--against", str(source), "--brief", cwd=tmp_path)
    assert same.returncode == 0, same.stdout
    assert "the same as" in same.stdout


@pytest.mark.parametrize(
    ("words", "code", "cause"),
    [
        (("nowhere", "out"), 2, "no folder nowhere"),
        (("SRC", "out", "--to", "gguf"), 2, "unknown format 'gguf'"),
        (("SRC", "out", "--shard-size", "5XB"), 2, "--shard-size must be a size"),
        (("SRC", "out", "--memory", "0"), 2, "--memory must be a size"),
        (("SRC", "out", "--layers", "0"), 2, "--layers must be at least 1"),
        (("SRC", "out", "--layers", "9"), 2, "has 3 layers"),
        (("SRC", "out", "--experts", "2"), 2, "is dense"),
        (("SRC", "out", "--verify", "maybe"), 2, "maybe"),
        (("SRC", "SRC"), 2, "is, holds or lies inside"),
        (("nobody/nothing", "out"), 1, "no folder nobody/nothing here"),
    ],
)
def test_what_cannot_be_is_one_line(
    trnt: Run, released: Callable[..., Path], tmp_path: Path, words: tuple[str, ...], code: int, cause: str
) -> None:
    source = str(released())
    done = trnt("convert", *(source if word == "SRC" else word for word in words), cwd=tmp_path)
    assert done.returncode == code, done.stderr
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith("error:")
    assert cause in lines[0]
    assert lines[-1].startswith("fix:")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_ctrl_c_leaves_what_is_done_and_the_same_command_goes_on(
    trnt: Run, released: Callable[..., Path], tmp_path: Path
) -> None:
    source = released(experts=64, config={"moe_intermediate_size": 512, "hidden_size": 512})
    command = [sys.executable, "-m", "trnt", "convert", str(source), "out", "--to", "hf", "--verify", "off"]
    process = subprocess.Popen(command, cwd=tmp_path, env=os.environ, stderr=subprocess.PIPE, text=True)
    manifest = tmp_path / ".out.partial" / "trnt-manifest.jsonl"
    while process.poll() is None and not (manifest.exists() and manifest.stat().st_size > 1000):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, "the conversion was faster than the signal: make the model larger"
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
    done = trnt(*command[3:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    same = trnt("verify", "out", "--against", str(source), "--brief", cwd=tmp_path)
    assert same.returncode == 0, same.stdout
