"""What the NKI kernels would cost on Trainium, by the cost model: interpreted and counted, not measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import torch

from trnt import console
from trnt.benching.report import time_text
from trnt.benching.run import case_of, sizes_for
from trnt.benching.sizes import Sizes
from trnt.benching.work import differences
from trnt.kernels import cost, hardware
from trnt.kernels.nki.experts_backward import experts_backward
from trnt.kernels.nki.experts_forward import experts_forward
from trnt.kernels.nki.route import route
from trnt.models.registry import ModelEntry
from trnt.optim.states import DTYPES

# The last kernel that an operator of the case runs: for the backward's case that is not the forward before it.
KERNELS: dict[str, Any] = {
    "experts-forward": experts_forward,
    "experts-backward": experts_backward,
    "route": route,
}


@contextmanager
def platform(name: str) -> Iterator[None]:
    """The interpreter's limits are this generation's inside."""
    before = os.environ.get(hardware.PLATFORM)
    os.environ[hardware.PLATFORM] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[hardware.PLATFORM]
        else:
            os.environ[hardware.PLATFORM] = before


def rows(
    entry: ModelEntry, chosen: list[str], generation: str, dtype: str, tokens: int | None
) -> Iterator[dict[str, Any]]:
    """One prediction after another. The results are checked too, as in a measurement."""
    code = DTYPES[dtype]
    for name in chosen:
        sizes = sizes_for(name, entry, tokens)
        case = case_of(name)
        given = case.inputs(sizes, "cpu", code)
        with platform(generation):
            outputs = run(case.kernels["nki-sim"], given)
        error, largest = differences(outputs, case.expected(given))
        found = cost.predict(KERNELS[name].report, generation)
        yield {
            "correct": error <= case.allowed(code, sizes),
            "max_error": largest,
            **row(name, sizes, case, code, generation, found),
        }


def run(build: Callable[[SimpleNamespace], Any], given: SimpleNamespace) -> dict[str, torch.Tensor]:
    work = build(given)
    if work.prepare is not None:
        work.prepare()
    work.run()
    return dict(work.outputs())


def row(name: str, sizes: Sizes, case: Any, dtype: torch.dtype, generation: str, found: cost.Range) -> dict[str, Any]:
    """Seconds, bytes and shares of one prediction."""
    flops, moved = case.flops(sizes), case.moved(sizes, dtype.itemsize)
    least, limit = cost.ideal(flops, moved, generation)
    expected = found.expected
    return {
        "name": name,
        "generation": hardware.core(generation).name,
        "dtype": str(dtype).removeprefix("torch."),
        "sizes": asdict(sizes),
        "predicted_seconds": expected.ns / 1e9,
        "predicted_range_seconds": [found.fastest / 1e9, found.slowest / 1e9],
        "busy_seconds": {engine: ns / 1e9 for engine, ns in expected.busy.items()},
        "bound": expected.bound,
        "roofline_seconds": least / 1e9,
        "roofline_limit": limit,
        "of_roofline": least / expected.ns,
        "hbm_bytes": expected.bytes,
        "instructions": expected.instructions,
    }


HEADER = ("case", "tokens", "correct", "predicted", "range", "busiest engines", "bytes", "roofline", "of it")


def cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = one["predicted_range_seconds"]
    busy = sorted(one["busy_seconds"].items(), key=lambda item: -item[1])[:3]
    return (
        one["name"],
        f"{one['sizes']['tokens']:,}",
        f"{'yes' if one['correct'] else 'NO'} ({one['max_error']:.1e})",
        time_text(one["predicted_seconds"]),
        f"{time_text(low)} to {time_text(high)}",
        ", ".join(f"{engine} {seconds / one['predicted_seconds']:.0%}" for engine, seconds in busy),
        console.human_bytes(one["hbm_bytes"]),
        f"{time_text(one['roofline_seconds'])} ({one['roofline_limit']})",
        f"{one['of_roofline']:.0%}",
    )


def table(found: list[dict[str, Any]]) -> str:
    return console.table(HEADER, (cells(one) for one in found))
