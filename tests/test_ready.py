"""What a run is, for resuming it, and what is refused before anything is built."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trnt import ready, training
from trnt.errors import UsageError

Settings = Callable[..., Any]


def test_another_optimizer_is_another_run_but_how_it_is_kept_is_not(settings: Settings) -> None:
    one = ready.identity(ready.prepare(settings()))
    assert ready.identity(ready.prepare(settings(optimizer="sgd"))) != one
    assert ready.identity(ready.prepare(settings(optimizer_states="8bit"))) == one


def test_a_batch_that_does_not_divide_is_refused(settings: Settings) -> None:
    with pytest.raises(UsageError, match="not a multiple"):
        ready.prepare(settings(batch_size=2, global_batch_size=3))


def test_a_run_that_is_resumed_keeps_its_gradients(settings: Settings, tmp_path: Any) -> None:
    given = {"out": str(tmp_path), "arguments": ["--lr_scheduler.min_lr_factor", "1.0"]}
    first = settings(steps=2, optimizer_states="fp32", gradient_dtype="bf16", **given)
    training.train(first, as_json=False)
    training.train(settings(steps=3, **given), as_json=False)
    assert [row["step"] for row in map(json.loads, (tmp_path / "metrics.jsonl").open())] == [1, 2, 3]
    assert json.loads((tmp_path / "run.json").read_text())["memory"]["gradients"] == "bf16"
    with pytest.raises(UsageError, match="gradients in bf16, not fp32"):
        training.train(settings(steps=4, gradient_dtype="fp32", **given), as_json=False)


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer_states": "bf16"},
        {"optimizer_states": "8bit", "gradient_dtype": "bf16", "recompute": "full"},
        {"optimizer": "muon", "model": "qwen3-tiny-moe"},
        {"optimizer": "adafactor"},
        {"optimizer": "sgd", "recompute": "full", "model": "qwen3-tiny-moe"},
    ],
)
def test_three_and_three_steps_equal_six_however_tensors_are_kept(
    settings: Settings, tmp_path: Any, given: dict[str, Any]
) -> None:
    rows = []
    for name, parts in (("whole", [6]), ("halves", [3, 6])):
        for steps in parts:
            # a schedule that does not depend on --steps, so that three steps are the first three of six
            chosen = settings(
                out=str(tmp_path / name), steps=steps, arguments=["--lr_scheduler.min_lr_factor", "1.0"], **given
            )
            training.train(chosen, as_json=False)
        text = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        rows.append([[row["loss"], row["grad_norm"]] for row in map(json.loads, text)])
    assert len(rows[0]) == 6
    assert rows[0] == rows[1]
