"""`trnt verify` as a user types it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_table_and_the_exit_code(trnt: Run, released: Callable[..., Path], tmp_path: Path) -> None:
    source = released()
    done = trnt("verify", str(source))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["tensor", "dtype", "shape", "sum"]
    assert ["model.embed_tokens.weight", "F32", "[4096,", "64]"] in [line.split()[:4] for line in lines]
    assert lines[-1].endswith("whole and finite")
    held = load_file(source / "model.safetensors")
    held["model.norm.weight"][0] = float("inf")
    other = released("other")
    save_file(held, other / "model.safetensors", metadata={"format": "pt"})
    wrong = trnt("verify", str(other), "--against", str(source), "--json")
    assert wrong.returncode == 1
    report = json.loads(wrong.stdout)
    assert not report["ok"]
    bad = [row for row in report["tensors"] if row["different"]]
    assert [(row["tensor"], row["infinite"], row["max_difference"]) for row in bad] == [("model.norm.weight", 1, "inf")]
