"""Timing one call honestly: warm-up left out, the device waited for, repeated until stable or out of time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

LEAST, MOST = 5, 200  # calls that are timed
STABLE = 0.03  # the spread at which more calls would say nothing new


@dataclass(frozen=True)
class Timing:
    """Seconds of every timed call."""

    calls: list[float]

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.calls)

    @property
    def spread(self) -> float | None:
        """Distance of the quartiles as a share of the median; of the extremes below four calls; None for one."""
        if len(self.calls) == 1:
            return None
        if len(self.calls) < 4:
            return (max(self.calls) - min(self.calls)) / self.seconds
        low, _, high = statistics.quantiles(self.calls, n=4, method="inclusive")
        return (high - low) / self.seconds


@dataclass(frozen=True)
class Peaks:
    """What the machine does, measured beside the case. flops: FLOP/s of a plain product; bytes: a copy's, both ways."""

    flops: float
    bytes: float


def timed_call(run: Callable[[], Any], kind: str) -> float:
    """Seconds of one call, until the device has finished."""
    if kind == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    wait = getattr(getattr(torch, kind, None), "synchronize", None) if kind != "cpu" else None
    start = time.perf_counter()
    run()
    if wait is not None:
        wait()
    return time.perf_counter() - start


def measure(run: Callable[[], Any], kind: str, limit: float, prepare: Callable[[], Any] | None = None) -> Timing:
    """Time `run` on a device of `kind`, `prepare` before each call untimed.

    limit: seconds after which no further call begins, once three are timed; once one is where it takes ten times that.
    """
    calls: list[float] = []

    def once() -> float:
        if prepare is not None:
            prepare()
        return timed_call(run, kind)

    first = once()
    begin = time.perf_counter()
    while len(calls) < MOST:
        calls.append(once())
        spent = time.perf_counter() - begin
        if len(calls) >= LEAST and (Timing(calls).spread or 0) <= STABLE:
            break
        if spent > limit and (len(calls) >= 3 or first > 10 * limit):
            break
    return Timing(calls)


def product_flops(kind: str, dtype: torch.dtype) -> float:
    """FLOP/s of the best of a few products of two square matrices, so large that one takes a hundredth of a second."""
    size, best = 256, 0.0
    while True:
        a, b = (torch.ones(size, size, dtype=dtype, device=kind) for _ in range(2))
        run = lambda: torch.mm(a, b)  # noqa: B023, E731 (called in this round only)
        run()
        seconds = min(timed_call(run, kind) for _ in range(3))
        best = max(best, 2 * size**3 / seconds)
        if seconds > 0.01 or size >= 8192:
            return best
        size *= 2


def copy_bytes(kind: str, dtype: torch.dtype, size: int = 1 << 27) -> float:
    """Bytes per second of a copy of `size` bytes, counted as read and written: the best of five."""
    source = torch.ones(size // dtype.itemsize, dtype=dtype, device=kind)
    target = torch.ones_like(source)
    return 2 * size / min(timed_call(lambda: target.copy_(source), kind) for _ in range(5))
