"""Calls are counted as they should be, and the rates are real ones."""

from __future__ import annotations

import time

import pytest
import torch

from trnt.benching.measure import LEAST, Timing, copy_bytes, measure, product_flops


def test_the_median_and_the_distance_of_the_quartiles() -> None:
    timing = Timing([4.0, 1.0, 2.0, 3.0, 100.0])
    assert timing.seconds == 3.0
    assert timing.spread == pytest.approx((4 - 2) / 3)
    assert Timing([1.0, 3.0]).spread == 1.0
    assert Timing([1.0]).spread is None


def test_the_first_call_is_not_timed_and_each_is_prepared() -> None:
    done: list[str] = []

    def run() -> None:
        done.append("run")
        time.sleep(0.2 if len(done) == 2 else 0.01)

    timing = measure(run, "cpu", 0.05, lambda: done.append("prepare"))
    assert done == ["prepare", "run"] * (len(timing.calls) + 1)
    assert len(timing.calls) >= 3
    assert max(timing.calls) < 0.2
    assert min(timing.calls) >= 0.01


def test_a_steady_call_ends_early_and_a_long_one_is_timed_once() -> None:
    steady = measure(lambda: time.sleep(0.05), "cpu", 60)
    assert LEAST <= len(steady.calls) < 50
    assert len(measure(lambda: time.sleep(0.05), "cpu", 0.001).calls) == 1


def test_the_peaks_are_rates_of_this_machine() -> None:
    """Products of 1,024 take 2 GFLOP; no core of today does a thousandth or a thousand times of 1 GFLOP/s."""
    assert 1e8 < product_flops("cpu", torch.float32) < 1e14
    assert 1e8 < copy_bytes("cpu", torch.float32, 1 << 24) < 1e13
