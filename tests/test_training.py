"""What `trnt train` decides before and after the loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trnt import config, ready, runs, training
from trnt.errors import UsageError

Settings = Callable[..., Any]


def test_a_run_s_recipe_runs_the_same_again(settings: Settings, tmp_path: Path) -> None:
    training.train(settings(lr=2e-3, seed=4), as_json=False)
    recipe = tmp_path / "run" / "recipe.toml"
    again = config.resolve({"out": str(tmp_path / "again")}, recipe=str(recipe), environment={})
    training.train(again, as_json=False)
    rows = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("run", "again")]
    losses = [[json.loads(row)["loss"] for row in part] for part in rows]
    assert losses[0] == losses[1]


def test_the_same_out_with_other_options_is_refused_and_untouched(settings: Settings, tmp_path: Path) -> None:
    training.train(settings(), as_json=False)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    with pytest.raises(UsageError, match="seed 0 -> 3"):
        training.train(settings(seed=3), as_json=False)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")} == before
    training.train(settings(seed=3, force=True), as_json=False)
    assert len(list(tmp_path.glob("run.replaced-*"))) == 1


def test_the_identity_holds_what_resume_must_not_mix(settings: Settings) -> None:
    one = ready.identity(ready.prepare(settings()))
    for changes in ({"seed": 1}, {"seq_len": 16}, {"layers": 2}, {"model": "qwen3-tiny-moe"}, {"shuffle": False}):
        other = ready.identity(ready.prepare(settings(**changes)))
        assert runs.differences(one, other), changes
    for changes in ({"steps": 50}, {"lr": 1e-4}, {"batch_size": 4}, {"save_every": 7}):
        assert ready.identity(ready.prepare(settings(**changes))) == one


def test_parameters_alone_of_the_plan_follow_the_cut(settings: Settings) -> None:
    one, two = (training.plan_of(ready.prepare(settings(layers=n))) for n in (1, 2))
    assert two.params_total > one.params_total
    assert one.memory_bytes > 16 * one.params_total
