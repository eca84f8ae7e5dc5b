"""The Transformers backend beside the native one: the same loss on the same weights and data; runs from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.models.conftest import FOREIGN, KINDS, check_export, rows, train

NATIVE = sorted(set(KINDS) - set(FOREIGN))
BY = {"backend": "transformers"}


@pytest.mark.parametrize("kind", NATIVE)
def test_the_first_steps_are_native_s(kind: str, hub_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = str(hub_folder(kind))
    one = train(tmp_path / "native", init_from=folder, steps=3)
    two = train(tmp_path / "other", init_from=folder, steps=3, **BY)
    for step in one:  # 1e-4 is asked; fp32 sums in another order give a tenth of it
        assert two[step]["loss"] == pytest.approx(one[step]["loss"], rel=1e-5)
    assert two[1]["grad_norm"] == pytest.approx(one[1]["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("kind", [*FOREIGN, "qwen3_moe", "gpt_oss"])
def test_train_resume_export_and_start_again(kind: str, hub_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = str(hub_folder(kind))
    whole = train(tmp_path / "run", init_from=folder, steps=20, save_every=10, **BY)
    assert whole[20]["loss"] < whole[1]["loss"] - 0.02
    step = str(tmp_path / "run" / "checkpoint" / "step-10")
    again = train(tmp_path / "again", init_from=folder, steps=20, resume=step, **BY)
    assert set(again) == set(range(11, 21))
    for number, row in again.items():
        # transformers adds up its experts' results by index, in whatever order threads come: the last bits differ
        assert row["loss"] == pytest.approx(whole[number]["loss"], rel=1e-5)
    if kind in ("gemma2", "gemma3_text", "granite", "olmo2"):
        assert all(row["loss"] == whole[number]["loss"] for number, row in again.items())
    check_export(tmp_path / "run", tmp_path / "hf")
    start = train(tmp_path / "third", init_from=str(tmp_path / "hf"), steps=1, **BY)
    assert start[1]["loss"] < whole[1]["loss"] - 0.02


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gemma2", "qwen3_moe"])
def test_two_processes_train_as_one(kind: str, hub_folder: Callable[..., Path], tmp_path: Path) -> None:
    """FSDP2 with tied and untied ends, plain and capped heads, fused experts; each process has half of the batch."""
    folder = str(hub_folder(kind))
    one = train(tmp_path / "one", init_from=folder, steps=3, batch_size=4, **BY)
    words = ["train", "--init-from", folder, "--steps", "3", "--seq-len", "64", "--batch-size", "2", "--seed", "1"]
    words += ["--backend", "transformers", "--out", str(tmp_path / "two")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trnt"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checkpoint:") == 1  # one process speaks
    two = rows(tmp_path / "two")
    for step, row in one.items():  # fp32 sums in another order; the norm is a sum of squares of sums
        assert two[step]["loss"] == pytest.approx(row["loss"], rel=1e-5)
        assert two[step]["grad_norm"] == pytest.approx(row["grad_norm"], rel=1e-4)
    check_export(tmp_path / "two", tmp_path / "hf")


@pytest.mark.slow
def test_recomputation_and_compile_change_nothing(hub_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = str(hub_folder("qwen3"))
    plain = train(tmp_path / "plain", init_from=folder, steps=2, **BY)
    again = train(tmp_path / "again", init_from=folder, steps=2, recompute="full", **BY)
    compiled = train(tmp_path / "compiled", init_from=folder, steps=2, compile="inductor", **BY)
    for step, row in plain.items():
        assert again[step]["loss"] == row["loss"]
        assert compiled[step]["loss"] == pytest.approx(row["loss"], rel=1e-5)  # fused sums in another order


def test_a_name_trains_from_random_weights_and_exports(tmp_path: Path) -> None:
    run = tmp_path / "run"
    found = train(run, model="qwen3-tiny-moe", layers=1, steps=20, **BY)
    assert found[20]["loss"] < found[1]["loss"] - 0.05
    check_export(run, tmp_path / "hf")
    assert json.loads((run / "summary.json").read_text())["backend"] == "transformers"
