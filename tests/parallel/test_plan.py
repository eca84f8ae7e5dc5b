"""The plan is arithmetic: it must agree with what is built."""

from __future__ import annotations

from typing import Any

import pytest

from trnt.models import registry
from trnt.parallel.plan import Batch, Plan, make_plan, render


def plan(name: str, **changes: Any) -> Plan:
    entry = registry.get(name).cut(changes.pop("layers", None), changes.pop("experts", None))
    batch = Batch(128, changes.pop("batch_size", 2), changes.pop("global_batch_size", -1), steps=10)
    given = {"precision": "fp32", "logits_limit_bytes": 1 << 27, "free_bytes": 1 << 34, "peak_flops": 1e11}
    return make_plan(entry, batch, **{**given, **changes})


def test_the_headline_model_has_its_published_size() -> None:
    got = plan("qwen3-30b-a3b", layers=4, experts=64)
    assert got.params_total == pytest.approx(1.906e9, rel=1e-3)
    assert got.param_bytes == 4 * got.params_total


def test_weights_gradients_and_states_follow_the_precision() -> None:
    fp32, bf16 = plan("qwen3-tiny"), plan("qwen3-tiny", precision="bf16")
    assert fp32.checkpoint_bytes == 2 * bf16.checkpoint_bytes == 12 * fp32.params_total


def test_tokens_arithmetic_and_time_grow_with_the_batch() -> None:
    one, four = plan("qwen3-tiny", batch_size=1), plan("qwen3-tiny", batch_size=1, global_batch_size=4)
    assert four.tokens_per_step == 4 * one.tokens_per_step == 512
    assert four.seconds_total == pytest.approx(4 * one.seconds_total)
    assert four.activation_bytes == one.activation_bytes


def test_the_table_shows_every_figure_and_leaves_time_out_when_unknown() -> None:
    text = render(plan("qwen3-tiny-moe"))
    assert "active per token" in text
    assert "time per step" in text
    assert "time per step" not in render(plan("qwen3-tiny-moe", peak_flops=None))
