"""A checkpoint of one layout goes on under another: the same state, the same steps after it, the same export."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.parallel.launches import CP, EP, HSDP, PP, SIMPLE, TP, job, launch, rows
from trnt.exporting import export_run

MODEL = "deepseek-v3-tiny"
# name: (processes, processes that have rows of their own, options)
LAYOUTS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "one process": (1, 1, ()),
    "FSDP2": (2, 2, ()),
    "SimpleFSDP": (2, 2, SIMPLE),
    "TP": (2, 1, TP),
    "CP": (2, 1, CP),
    "EP": (2, 2, EP),
    "PP": (2, 1, PP),
    "FSDP2 over 4": (4, 4, ()),
    "HSDP 2 x 2": (4, 4, HSDP),
    "FSDP2 x TP": (4, 2, TP),
    "PP x FSDP2": (4, 2, PP),
}
PAIRS = [
    ("one process", "FSDP2 over 4"),
    ("FSDP2 over 4", "one process"),
    ("FSDP2", "TP"),
    ("EP", "FSDP2"),
    ("PP", "FSDP2"),
    ("TP", "CP"),
    ("CP", "FSDP2 x TP"),
    ("SimpleFSDP", "HSDP 2 x 2"),
    ("PP x FSDP2", "EP"),
]
STOPPED, AGAIN = 3, 4


def run(jobs: dict[int, list[dict[str, Any]]], root: Path) -> None:
    for processes, wanted in jobs.items():
        launch(wanted, processes, root / "jobs.json")


@pytest.mark.slow
def test_a_run_goes_on_under_another_layout(tmp_path: Path) -> None:
    whole = job(tmp_path / "whole", MODEL, 1, ())
    first: dict[int, list[dict[str, Any]]] = {1: [whole]}
    for name in sorted({before for before, _ in PAIRS}):
        processes, sharing, words = LAYOUTS[name]
        first.setdefault(processes, []).append(job(tmp_path / name, MODEL, sharing, words, stop=STOPPED))
    run(first, tmp_path)
    then: dict[int, list[dict[str, Any]]] = {}
    for before, after in PAIRS:
        place = tmp_path / f"{before} to {after}"
        shutil.copytree(tmp_path / before / "run", place / "run")
        processes, sharing, words = LAYOUTS[after]
        then.setdefault(processes, []).append(job(place, MODEL, sharing, words, saved_again=AGAIN))
    run(then, tmp_path)
    expected = rows(tmp_path / "whole")
    exported = {before: export(tmp_path / before, STOPPED) for before, _ in PAIRS}
    for before, after in PAIRS:
        place = tmp_path / f"{before} to {after}"
        differs(state(tmp_path / before, STOPPED), state(place, AGAIN))
        assert export(place, AGAIN) == exported[before], (before, after)
        told = rows(place)
        assert [row["step"] for row in told] == [1, 2, 3, 4, 5]
        for row, wanted in zip(told, expected, strict=True):
            # sums in another order, as in test_layouts.py
            assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-5), (before, after, row["step"])
            assert row["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=3e-5), (before, after, row["step"])
            assert row["tokens"] == wanted["tokens"]


def state(place: Path, step: int) -> dict[str, Any]:
    """All that a checkpoint holds, by torch's own reader: tensors of the model and of the optimizer, and the rest."""
    file = place / f"{step}.pt"
    dcp_to_torch_save(place / "run" / "checkpoint" / f"step-{step}", file)
    return flat(torch.load(file, weights_only=False))


def flat(found: Any, name: str = "") -> dict[str, Any]:
    if isinstance(found, dict):
        return {key: value for part, inner in found.items() for key, value in flat(inner, f"{name}.{part}").items()}
    return {name: found}


def differs(saved: dict[str, Any], again: dict[str, Any]) -> None:
    """Bit by bit equal, the place in the data of every process apart: there may be more of them or fewer."""
    data = "dataloader"
    assert {key for key in saved if data not in key} == {key for key in again if data not in key}
    tensors = 0
    for key, value in saved.items():
        if isinstance(value, torch.Tensor):
            tensors += 1
            assert torch.equal(value, again[key]), key
        elif data not in key:
            assert again[key] == value, key
    assert tensors > 100  # weights and two moments of each


def export(place: Path, step: int) -> dict[str, bytes]:
    """The files of weights that `trnt export` makes of a step."""
    target = place / f"hf-{step}"
    saved = place / "run" / "checkpoint" / f"step-{step}"
    export_run(str(saved), str(target), runs_dir="runs", dtype=None, force=False, check=False)
    return {path.name: path.read_bytes() for path in sorted(target.glob("*.safetensors*"))}
