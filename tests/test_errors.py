"""Causes, fixes and did-you-mean."""

from __future__ import annotations

import pytest

from trnt import errors


@pytest.mark.parametrize(
    ("name", "near"), [("dcotor", "doctor"), ("trian", "train"), ("export", "export"), ("zzzz", None), ("", None)]
)
def test_the_nearest_name(name: str, near: str | None) -> None:
    assert errors.nearest(name, ["doctor", "train", "export"]) == near


def test_unknown_names_are_usage_errors_with_a_way_out() -> None:
    error = errors.unknown("model", "qwn3", ["qwen3", "llama3"])
    assert (error.exit_code, error.fix) == (2, "did you mean 'qwen3'?")
    assert "llama3, qwen3" in errors.unknown("model", "x", ["qwen3", "llama3"]).fix
    assert errors.unknown("m", "x", [f"n{i:03d}" for i in range(99)]).fix.endswith("...")


def test_every_exit_code_is_documented() -> None:
    codes = {errors.OK, errors.FAILED, errors.USAGE, errors.INTERRUPTED, errors.TERMINATED}
    assert codes == set(errors.EXIT_CODES)
