"""The plan of a run from its settings: what is kept how, and what is refused before anything is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trnt import planning, ready
from trnt.errors import TrntError, UsageError

Settings = Callable[..., Any]


def test_parameters_alone_of_the_plan_follow_the_cut(settings: Settings) -> None:
    one, two = (planning.plan_of(ready.prepare(settings(layers=n))) for n in (1, 2))
    assert two.params_total > one.params_total
    assert one.memory_bytes > 16 * one.params_total


def test_reduced_states_are_for_adamw(settings: Settings) -> None:
    with pytest.raises(UsageError, match="for adamw"):
        planning.plan_of(ready.prepare(settings(optimizer="sgd", optimizer_states="bf16")))


def test_a_run_that_is_resumed_keeps_its_states(settings: Settings) -> None:
    checked = ready.prepare(settings())
    recorded = {"states": "8bit", "gradients": "bf16", "recompute": "none"}
    assert planning.plan_of(checked, recorded).choice.states == "8bit"
    with pytest.raises(UsageError, match="in 8bit, not fp32"):
        planning.plan_of(ready.prepare(settings(optimizer_states="fp32")), recorded)


def test_strict_memory_refuses_what_is_too_large(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning.host_memory, "free_bytes", lambda: 1 << 20)
    with pytest.raises(TrntError, match="does not fit"):
        planning.plan_of(ready.prepare(settings(memory="strict")))
    assert planning.plan_of(ready.prepare(settings(memory="off"))).chosen is None
