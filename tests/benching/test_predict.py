"""Predictions say that they are some, and what bounds them."""

from __future__ import annotations

import os
from typing import Any

import pytest

from trnt.benching import names, predict
from trnt.kernels import hardware
from trnt.models import registry


def rows(*chosen: str, generation: str = "trn2") -> list[dict[str, Any]]:
    return list(predict.rows(registry.get("qwen3-tiny-moe"), list(chosen), generation, "bf16", 32))


def test_a_prediction() -> None:
    forward, backward, route = rows("experts-forward", "experts-backward", "route")
    for row in (forward, backward, route):
        assert row["correct"]
        low, high = row["predicted_range_seconds"]
        assert low <= row["predicted_seconds"] <= high
        assert max(row["busy_seconds"].values()) <= row["predicted_seconds"]
        assert row["of_roofline"] == pytest.approx(row["roofline_seconds"] / row["predicted_seconds"])
    assert backward["instructions"] > forward["instructions"]
    assert "experts-forward" in predict.table([forward])


def test_the_platform_is_the_user_s_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(hardware.PLATFORM, raising=False)
    rows("route", generation="trn1")
    assert hardware.PLATFORM not in os.environ
    monkeypatch.setenv(hardware.PLATFORM, "trn3")
    rows("route", generation="trn1")
    assert os.environ[hardware.PLATFORM] == "trn3"


def test_what_has_a_kernel_can_be_predicted() -> None:
    assert set(predict.KERNELS) == {name for name, case in names.CASES.items() if "nki" in case.kernels}
