"""Errors are found, whatever they are."""

from __future__ import annotations

import math

import pytest
import torch

from trnt.benching.work import allowed, differences, tile


def test_no_two_experts_are_alike() -> None:
    weights = tile((64, 768, 2048), torch.float32, "cpu", 1.0, 0)
    assert len({weights[e, 0, :4].sum().item() for e in range(64)}) == 64
    assert abs(weights.std().item() - 1) < 0.01


def test_errors_are_shares_of_what_was_expected() -> None:
    expected = {"a": torch.tensor([3.0, 4.0]), "b": torch.ones(2)}
    assert differences(expected, expected) == (0.0, 0.0)
    error, largest = differences({"a": torch.tensor([3.0, 5.0]), "b": torch.ones(2)}, expected)
    assert error == pytest.approx(1 / 5)
    assert largest == pytest.approx(1 / 4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_never_right(bad: float) -> None:
    expected = {"a": torch.ones(2), "b": torch.ones(2)}
    for name in expected:
        error, largest = differences({**expected, name: torch.tensor([1.0, bad])}, expected)
        assert error == largest == math.inf


def test_a_result_in_bf16_is_no_right_one_in_fp32() -> None:
    """The bound tells the precisions apart."""
    value = torch.randn(1000)
    error, _ = differences({"a": value.bfloat16()}, {"a": value})
    assert allowed(torch.float32, 4096) < error < allowed(torch.bfloat16, 4096)
