"""Running cases one after another: inputs, reference, timing, and the share of what this machine can do."""

from __future__ import annotations

import gc
import importlib
import platform
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from trnt import console, device, host_memory
from trnt.benching import names
from trnt.benching.measure import Peaks, copy_bytes, measure, product_flops
from trnt.benching.sizes import Sizes, sizes_of
from trnt.benching.work import Case, Outputs, Work, differences
from trnt.errors import TrntError
from trnt.models.registry import ModelEntry
from trnt.optim.states import DTYPES


def case_of(name: str) -> Case:
    return importlib.import_module(names.CASES[name].module).CASES[name]


def sizes_for(name: str, entry: ModelEntry, tokens: int | None) -> Sizes:
    """The sizes of a case: its own number of tokens unless one is asked for."""
    return sizes_of(entry, names.CASES[name].tokens if tokens is None else tokens)


def machine(kind: str) -> dict[str, Any]:
    """What the figures depend on."""
    found = {"device": kind, "cpu": cpu_name(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    if kind == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found


def cpu_name() -> str:
    """The processor's own name on Linux, else its architecture."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def check_memory(entry: ModelEntry, chosen: list[str], tokens: int | None) -> None:
    """Raises TrntError for the first case that the free memory does not hold."""
    free = host_memory.free_bytes()
    for name in chosen:
        sizes = sizes_for(name, entry, tokens)
        needed = case_of(name).memory(sizes)
        if needed > free:
            less = f"--tokens {max(1, sizes.tokens // 2)}"
            if names.CASES[name].experts and sizes.expert_weights > sizes.rows * sizes.expert_size:
                less = f"--experts {max(sizes.top_k, int(sizes.num_experts * 0.95 * free / needed))}"
            raise TrntError(
                f"{name} at {entry.name}'s sizes takes about {console.human_bytes(needed)}, "
                f"{console.human_bytes(free)} are free",
                f"use {less}, or name other cases",
            )


def results(
    entry: ModelEntry, pairs: list[tuple[str, str]], kind: str, dtype: str, tokens: int | None, limit: float
) -> Iterator[dict[str, Any]]:
    """One row after another for (case, kernels); those of one case share inputs and reference."""
    code = DTYPES[dtype]
    peak_bytes = copy_bytes(kind, code)
    given: Any = None
    expected: Outputs = {}
    last, made = "", None
    for name, kernels in pairs:
        case = case_of(name)
        sizes = sizes_for(name, entry, tokens)
        if name != last:
            expected = {}
            gc.collect()  # a backward's graph holds its weights' gradients
            if made != (case.inputs, sizes):
                given = None
                given = case.inputs(sizes, kind, code)
            expected = case.expected(given)
        last, made = name, (case.inputs, sizes)
        yield one(case, name, kernels, given, expected, sizes, kind, code, peak_bytes, limit)


def one(
    case: Case,
    name: str,
    kernels: str,
    given: Any,
    expected: Outputs,
    sizes: Sizes,
    kind: str,
    dtype: torch.dtype,
    peak_bytes: float,
    limit: float,
) -> dict[str, Any]:
    """One row. The product rate is the better of one before and one after: a shared machine's wanders."""
    work: Work = case.kernels[kernels](given)
    before = product_flops(kind, dtype)
    timing = measure(work.run, kind, limit, work.prepare)
    peaks = Peaks(max(before, product_flops(kind, dtype)), peak_bytes)
    error, largest = differences(work.outputs(), expected)
    accepted = case.allowed(dtype, sizes)
    flops, moved = case.flops(sizes), case.moved(sizes, dtype.itemsize)
    least = {"products": flops / peaks.flops, "memory": moved / peaks.bytes}
    bound = max(least, key=lambda which: least[which])
    return {
        "name": name,
        "kernels": kernels,
        "dtype": str(dtype).removeprefix("torch."),
        "sizes": asdict(sizes),
        "correct": error <= accepted,
        "error": error,
        "error_allowed": accepted,
        "max_error": largest,
        "seconds": timing.seconds,
        "spread": timing.spread,
        "repeats": len(timing.calls),
        "flops_per_s": flops / timing.seconds,
        "bytes_per_s": moved / timing.seconds,
        "peak_flops_per_s": peaks.flops,
        "peak_bytes_per_s": peaks.bytes,
        "bound": bound,
        "of_bound": least[bound] / timing.seconds,
        "flops": flops,
        "bytes": moved,
        "interpreted": kernels == "nki-sim",
    }


def ready(wanted: str) -> str:
    """The kind of device that `wanted` (auto, cpu, cuda, neuron) is here, with its shims. Raises TrntError."""
    kind = device.resolve(wanted)
    device.ensure(kind)
    if kind == "cpu":
        host_memory.keep_freed()  # as a training run does
    return kind
