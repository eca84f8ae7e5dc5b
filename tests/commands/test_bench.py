"""`trnt bench` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trnt.benching import names

TINY = ("--model", "qwen3-tiny-moe", "--tokens", "16", "--seconds", "0.01", "--device", "cpu")


def test_the_list_and_its_json(trnt: Any) -> None:
    shown = trnt("bench", "--list")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in names.CASES)
    assert [row["name"] for row in json.loads(trnt("bench", "--list", "--json").stdout)["cases"]] == list(names.CASES)


def test_everything_that_fits_the_model(trnt: Any) -> None:
    done = trnt("bench", *TINY, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["name"] for row in found["cases"]] == list(names.CASES)
    for row in found["cases"]:
        assert row["correct"], row
        assert row["seconds"] > 0
    assert found["machine"]["device"] == "cpu"
    assert "10/10" in done.stderr


def test_slower_than_before_is_exit_code_1(trnt: Any, tmp_path: Path) -> None:
    kept = tmp_path / "before.json"
    assert trnt("bench", "route", *TINY, "--save", str(kept)).returncode == 0
    before = json.loads(kept.read_text())
    before["cases"][0]["seconds"] /= 1e3
    before["cases"][0]["spread"] = 0.01
    kept.write_text(json.dumps(before))
    done = trnt("bench", "route", *TINY, "--compare", str(kept), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["compared"]["slower"]


def test_a_typo(trnt: Any) -> None:
    done = trnt("bench", "exprts")
    assert done.returncode == 2
    assert "did you mean 'experts" in done.stderr


def test_a_prediction_is_not_compared(trnt: Any) -> None:
    done = trnt("bench", "route", "--predict", "trn2", "--compare", "x.json")
    assert done.returncode == 2
    assert "--predict goes without" in done.stderr
