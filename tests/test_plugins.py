"""Families and kernels of other packages: the one in examples/, and some that are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "custom"


def installed(folder: Path, points: dict[str, dict[str, str]], name: str = "trnt-custom") -> Path:
    """What pip leaves of a package's entry points."""
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in rows.items()) for group, rows in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def trnt(path: list[Path], *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(p) for p in (*path, ROOT))}
    return subprocess.run([sys.executable, "-m", "trnt", *words], capture_output=True, text=True, env=env)


@pytest.fixture
def custom(tmp_path: Path) -> list[Path]:
    """The example as pip would install it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    return [installed(tmp_path / "site", project["entry-points"]), EXAMPLE]


def test_a_family_of_another_package_is_listed_and_planned(custom: list[Path]) -> None:
    rows = json.loads(trnt(custom, "models", "--json").stdout)["models"]
    row = next(row for row in rows if row["name"] == "smollm2-135m")
    assert row["family"] == "smollm2"
    assert row["params_total"] == 134_515_008  # the published 135M
    assert json.loads(trnt(custom, "models", "HuggingFaceTB/SmolLM2-360M-Instruct", "--json").stdout)["model"]
    done = trnt(custom, "train", "--model", "smollm2-135m", "--layers", "1", "--dry-run", "--json")
    assert json.loads(done.stdout)["model"] == "smollm2-135m", done.stderr


@pytest.mark.slow
def test_kernels_of_another_package_train_as_trnt_s_own(custom: list[Path], tmp_path: Path) -> None:
    losses = {}
    for kernels in ("torch", "one-by-one"):
        words = ("--model", "qwen3-tiny-moe", "--layers", "1", "--steps", "2", "--seq-len", "32", "--batch-size", "1")
        done = trnt(custom, "train", *words, "--kernels", kernels, "--out", str(tmp_path / kernels))
        assert done.returncode == 0, done.stderr
        rows = (tmp_path / kernels / "metrics.jsonl").read_text().splitlines()
        losses[kernels] = [json.loads(row)["loss"] for row in rows]
    assert "kernels: one-by-one for routing and experts, of the package trnt-custom" in done.stderr
    assert losses["one-by-one"] == pytest.approx(losses["torch"], rel=1e-4)


def test_a_plugin_that_is_broken_costs_one_line(tmp_path: Path) -> None:
    points = {"trnt.models": {"nothing": "no_such_module", "qwen3": "trnt.models.qwen3", "half": "trnt.models.names"}}
    path = [installed(tmp_path / "site", {**points, "trnt.kernels": {"lost": "no_such_module:parts"}}, "broken")]
    done = trnt(path, "models", "--json")
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["models"]) > 10
    lines = [line for line in done.stderr.splitlines() if "of broken" in line]
    assert len(lines) == 3
    assert any("cannot be loaded: ModuleNotFoundError" in line for line in lines)
    assert any("the name of one of trnt's own" in line for line in lines)
    assert any("has no SIZES" in line for line in lines)
    words = ("--model", "qwen3-tiny-moe", "--layers", "1", "--steps", "1", "--seq-len", "32", "--batch-size", "1")
    done = trnt(path, "train", *words, "--kernels", "lost", "--out", str(tmp_path / "run"))
    assert done.returncode == 1
    assert "the plugin lost of broken cannot be loaded" in done.stderr
    assert "pip uninstall broken" in done.stderr


def test_a_name_that_nobody_brings(tmp_path: Path) -> None:
    done = trnt([], "train", "--kernels", "one-by-one")
    assert done.returncode == 2
    assert "unknown value for --kernels 'one-by-one'" in done.stderr
