"""What is asked of `trnt bench` is checked first; what it finds decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trnt import benched
from trnt.errors import TrntError, UsageError

OPTIONS: dict[str, Any] = {
    "model": "qwen3-tiny-moe",
    "experts": None,
    "tokens": 16,
    "dtype": "fp32",
    "kernels": None,
    "device": "cpu",
    "seconds": 0.01,
}


def bench(*cases: str, **options: Any) -> benched.Found:
    return benched.bench(list(cases), **{**OPTIONS, **options})


def test_a_run_is_kept_compared_and_drawn(tmp_path: Path) -> None:
    kept, picture = tmp_path / "before.json", tmp_path / "roof.png"
    first = bench("route", "rmsnorm", save=kept, plot=picture)
    assert first.good
    assert [row["name"] for row in json.loads(kept.read_text())["cases"]] == ["route", "rmsnorm"]
    assert "2 cases drawn" in first.text()
    assert picture.read_bytes().startswith(b"\x89PNG")

    before = json.loads(kept.read_text())
    for row in before["cases"]:
        row["seconds"] *= 1e9 if row["name"] == "route" else 1e-9  # beyond what a busy machine does to 10 ms of calls
    kept.write_text(json.dumps(before))
    second = bench("route", "rmsnorm", compare=kept)
    assert [what.split()[0] for what in second.worse] == ["rmsnorm"]
    assert not second.good
    assert "slower: rmsnorm" in second.text()
    assert "faster: route" in second.text()


def test_a_wrong_result_is_no_good_one() -> None:
    found = bench("route")
    found.result["cases"][0]["correct"] = False
    assert not found.good
    assert "WRONG: route (torch)" in found.text()


def test_both_kernels_side_by_side_and_interpreted() -> None:
    rows = bench("experts-forward", kernels="cpu,torch,nki-sim").result["cases"]
    assert [row["kernels"] for row in rows] == ["cpu", "torch", "nki-sim"]
    assert all(row["correct"] for row in rows)


def test_a_dense_model_has_the_other_cases() -> None:
    with pytest.raises(UsageError, match="needs a model with experts"):
        bench("experts", model="qwen3-tiny")


def test_experts_are_cut_to_what_fits() -> None:
    assert benched.entry_of("qwen3-30b-a3b", None).size.num_experts == 64
    assert benched.entry_of("qwen3-30b-a3b", 128).size.num_experts == 128
    assert benched.entry_of("qwen3-tiny", None).size.num_experts == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "fp16"}, "unknown dtype"),
        ({"device": "tpu"}, "unknown device"),
        ({"device": "cuda"}, "no cuda device"),
        ({"seconds": 0.0}, "--seconds"),
        ({"seconds": float("nan")}, "--seconds"),
        ({"tokens": 0}, "--tokens 0"),
        ({"kernels": "nki"}, "does not run here"),
        ({"kernels": "fast"}, "unknown kernels"),
        ({"kernels": "cpu"}, "cpu computes none of route"),
        ({"model": "qwen9"}, "unknown model"),
        ({"plot": Path("roof.txt")}, "no picture's ending"),
        ({"save": Path("nowhere/before.json")}, "there is no folder nowhere"),
        ({"compare": Path("nowhere.json")}, "there is no nowhere.json"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TrntError, match=said):
        bench("route", **options)


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    kept = tmp_path / "before.json"
    kept.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        bench("route", save=kept)
    assert kept.read_text() == "mine"
    bench("route", save=kept, force=True)
    assert json.loads(kept.read_text())["cases"]


def test_predictions(trnt: Any) -> None:
    words = ("bench", "--predict", "trn2", "--model", "qwen3-tiny-moe", "--tokens", "16")
    done = trnt(*words)
    assert done.returncode == 0, done.stderr
    assert "not measured: not run on hardware" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == [
        "experts-forward",
        "experts-backward",
        "route",
    ]


@pytest.mark.parametrize(
    ("cases", "generation", "model", "said"),
    [
        (["route"], "trn9", "qwen3-tiny-moe", "unknown generation"),
        (["loss"], "trn2", "qwen3-tiny-moe", "loss has no NKI kernel"),
        ([], "trn2", "qwen3-tiny", "has no NKI kernel"),
    ],
)
def test_what_cannot_be_predicted(cases: list[str], generation: str, model: str, said: str) -> None:
    with pytest.raises(TrntError, match=said):
        benched.predict(cases, model=model, experts=None, tokens=16, dtype="bf16", generation=generation)
