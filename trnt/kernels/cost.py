"""What a kernel would cost on Trainium: its instructions, counted by the interpreter, put on the engines' timelines.

A prediction from documented rates, not a measurement; nothing here has run on hardware. Each instruction takes its
engine for so many cycles; engines go on in program order, each in its own queue, waiting only for the data they read,
for those who still read what they overwrite, and for room in the state buffer and in PSUM. Loads, stores and transfers
by index (which gpsimd triggers, in its own order) are three DMA queues that share one bandwidth. Constants and their
sources are in `RATES` and `SHARES`; [assume] marks those that no document gives; `predict` gives a range: with those
halved and doubled, and with run-time loops as walls.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from dataclasses import dataclass, replace

from trnt.kernels import hardware
from trnt.kernels.sim.machine import Issued, Use
from trnt.kernels.sim.run import Report

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma")
WIDE = {"float32", "tfloat32", "int32", "uint32"}


@dataclass(frozen=True)
class Rates:
    """One physical core. GHz; bytes per ns; FLOP per ns of bf16 products."""

    tensor: float
    vector: float
    scalar: float
    gpsimd: float
    dma: float
    """16 queues together."""
    hbm: float
    """The chip's, by its cores."""
    flops: float
    start_ns: float = 1300.0
    """From a DMA's trigger to its start on another engine's word (nki-dma-overview)."""
    gather_ns: float = 1000.0
    """[assume] gpsimd's time to write the descriptors of 128 gathered rows."""
    step: float = 64.0
    """[assume] cycles that an instruction takes at least; documented for the tensor engine of trn1."""


# Architecture guides of the Neuron SDK (trainium_inferentia2_arch, trainium2_arch, trainium3_arch), its
# nki-dma-bandwidth-guide (16 queues of 17, 23 and 33 B/ns), neuron-hardware (HBM per chip: 0.82, 2.9 and 4.7 TB/s by
# 2, 8 and 8 cores). trn3's products are taken at trn2's bf16 rate [assume].
RATES = {
    "trn1": Rates(2.8, 1.12, 1.4, 1.4, 272.0, 410.0, 92e3),
    "trn2": Rates(2.4, 0.96, 1.2, 1.2, 368.0, 362.5, 79e3),
    "trn3": Rates(2.4, 1.2, 1.2, 1.2, 528.0, 587.5, 79e3),
}
# Share of the DMA rate by the bytes that lie together, 128 partitions: read off a figure of nki-dma-overview, +-1 %.
SHARES = ((2048, 0.81), (4096, 0.97), (8192, 0.98), (32768, 1.0))
TRANSPOSE = 0.9  # of the rate, at most (nki-dma-overview)
FOUR = {"tensor_copy", "tensor_scalar"}  # faster in 16 bits: 4 x in the state buffer, 2 x with PSUM (trainium2_arch)
TWO_INPUTS = {"tensor_tensor", "scalar_tensor_tensor", "tensor_copy_predicated", "select_reduce"}
CYCLES_EACH = {"reciprocal": 8}


def share(run: int) -> float:
    """Of the DMA rate, for `run` bytes together. Below 2 KiB a row takes the same time whatever its length."""
    first, part = SHARES[0]
    if run <= first:
        return part * run / first
    for (low, a), (high, b) in itertools.pairwise(SHARES):
        if run <= high:
            return a + (b - a) * (run - low) / (high - low)
    return 1.0


def nanoseconds(one: Issued, rates: Rates) -> float:
    """How long an instruction takes its engine (a DMA: the bandwidth)."""
    if one.engine == "dma":
        queues = min(16, -(-one.rows // 8))
        rate = rates.dma * share(one.run) * (TRANSPOSE if one.name == "dma_transpose" else 1) * queues / 16
        return one.moved / min(rate, rates.hbm)
    clock = {"tensor": rates.tensor, "vector": rates.vector, "scalar": rates.scalar, "gpsimd": rates.gpsimd}
    return max(cycles(one), rates.step) / clock[one.engine]


def cycles(one: Issued) -> float:
    """Cycles of a compute engine by the documented formulas, the least per instruction aside."""
    wide = one.dtype in WIDE
    if one.name == "nc_matmul":
        return one.columns * (4 if wide else 1)
    if one.name == "nc_transpose" and one.engine == "tensor":
        return one.rows * (2 if wide else 1)
    if one.name in TWO_INPUTS:
        return one.columns * (1 if one.narrow else 2)
    if one.engine == "vector" and one.name in FOUR:
        return one.columns / (4 if one.narrow else 2 if one.half else 1)
    return one.columns * CYCLES_EACH.get(one.name, 1)


class Room:
    """A memory on chip: who wants in waits until enough of those who will not be used again have left."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = 0
        self.leaving: list[tuple[float, int]] = []

    def enter(self, size: int) -> float:
        """The time from which on there is room."""
        at = 0.0
        self.held += size
        while self.held > self.size and self.leaving:
            at, gone = heapq.heappop(self.leaving)
            self.held -= gone
        return at

    def leave(self, size: int, at: float) -> None:
        heapq.heappush(self.leaving, (at, size))


class Bandwidth:
    """One resource that several queues share: a transfer takes what is free from its start on, if need be in pieces."""

    def __init__(self) -> None:
        self.free: list[tuple[float, float]] = [(0.0, float("inf"))]

    def take(self, begin: float, length: float) -> float:
        """When a transfer of `length` that may begin at `begin` is through."""
        left, end, kept = length, begin, []
        for low, high in self.free:
            start = max(low, begin)
            if left <= 0 or start >= high:
                kept.append((low, high))
                continue
            used = min(left, high - start)
            left -= used
            end = start + used
            if start > low:
                kept.append((low, start))
            if end < high:
                kept.append((end, high))
        self.free = kept[-512:]  # what is older than 512 gaps stays unused
        return end


@dataclass(frozen=True)
class Predicted:
    """Nanoseconds of one run. busy: of each engine; bytes: through HBM; instructions: how many."""

    ns: float
    busy: dict[str, float]
    bytes: int
    instructions: int

    @property
    def bound(self) -> str:
        """The engine that is busy longest: no order of the same instructions is faster than it."""
        return max(self.busy, key=lambda name: self.busy[name])


def schedule(report: Report, core: hardware.Core, rates: Rates, *, walls: bool = False) -> Predicted:
    """Put the instructions on the timelines. walls: a trip of a run-time loop waits for all before it."""
    last: dict[int, int] = {}
    for index, one in enumerate(report.issued):
        for use in one.uses:
            last[use.storage] = index
    trips = set(report.trips) if walls else set()
    rooms = {"sbuf": Room(core.sbuf_usable), "psum": Room(core.psum_banks * core.psum_bank_bytes)}
    queue: dict[str, float] = defaultdict(float)
    written: dict[int, dict[int, float]] = defaultdict(dict)  # storage -> offset -> end; -1: all of it
    finished: dict[int, float] = defaultdict(float)  # of all that used the storage
    read: dict[int, float] = defaultdict(float)
    busy = dict.fromkeys(ENGINES, 0.0)
    bandwidth, end_of_all, total = Bandwidth(), 0.0, 0
    for index, one in enumerate(report.issued):
        begin = end_of_all if index in trips else 0.0
        if index in trips:
            queue = defaultdict(lambda wall=begin: wall)  # type: ignore[misc]
        for use in one.uses:
            if use.storage < 0:
                continue
            buffer, size = report.sizes[use.storage]
            if buffer in rooms and use.storage not in finished:
                begin = max(begin, rooms[buffer].enter(taken(buffer, size, core)))
            begin = max(begin, waits(use, buffer, written[use.storage], read[use.storage], finished[use.storage]))
        which = one.engine
        length = nanoseconds(one, rates)
        busy[one.engine] += length
        if which == "dma":
            stores = any(
                use.writes and use.storage >= 0 and report.sizes[use.storage][0].endswith("hbm") for use in one.uses
            )
            which = "store" if stores else "load"
            if any(use.offset < 0 for use in one.uses):  # by index: gpsimd's own queue, in its program order
                which = "gpsimd"
                busy[which] += rates.gather_ns
                begin = max(queue[which], begin) + rates.gather_ns
            begin = max(begin, queue[which])
            queue[which] = begin  # the next may be triggered while this one is under way
            end = bandwidth.take(begin, length) + rates.start_ns
            total += one.moved
        else:
            begin = max(begin, queue[which])
            end = queue[which] = begin + length
        end_of_all = max(end_of_all, end)
        for use in one.uses:
            number = use.storage
            if number < 0:
                continue
            finished[number] = max(finished[number], end)
            if use.writes:
                written[number][use.offset] = max(written[number].get(use.offset, 0.0), end)
            else:
                read[number] = max(read[number], end)
            buffer, size = report.sizes[number]
            if last[number] == index and buffer in rooms:
                last[number] = -1  # once, though an instruction names it twice
                rooms[buffer].leave(taken(buffer, size, core), finished[number])
    return Predicted(end_of_all, busy, total, len(report.issued))


def taken(buffer: str, size: int, core: hardware.Core) -> int:
    """Bytes per partition that a tensor takes: in PSUM whole banks."""
    return -(-size // core.psum_bank_bytes) * core.psum_bank_bytes if buffer == "psum" else size


def waits(use: Use, buffer: str, written: dict[int, float], read: float, finished: float) -> float:
    """When an access may begin. On chip by the tensor; in HBM by the place: transfers to others do not disturb it."""
    if buffer in ("sbuf", "psum"):
        return max(max(written.values(), default=0.0), read if use.writes else 0.0)
    known = use.offset in written or use.writes
    if use.offset < 0 or not known:
        return max(finished if use.writes else 0.0, max(written.values(), default=0.0))
    return max(written.get(use.offset, 0.0), written.get(-1, 0.0))


@dataclass(frozen=True)
class Range:
    """A prediction with what is not documented put both ways."""

    expected: Predicted
    fastest: float
    slowest: float


def predict(report: Report, name: str) -> Range:
    """The prediction for trn1, trn2 or trn3 of a kernel's last run."""
    core, rates = hardware.core(name), RATES[hardware.core(name).name]
    half = replace(rates, gather_ns=rates.gather_ns / 2, step=rates.step / 2)
    double = replace(rates, gather_ns=rates.gather_ns * 2, step=rates.step * 2)
    return Range(
        schedule(report, core, rates),
        schedule(report, core, half).ns,
        schedule(report, core, double, walls=True).ns,
    )


def ideal(flops: float, moved: float, name: str) -> tuple[float, str]:
    """(nanoseconds, products or memory) that no kernel on one core can beat: the roofline."""
    rates = RATES[hardware.core(name).name]
    least = {"products": flops / rates.flops, "memory": moved / min(rates.hbm, rates.dma)}
    bound = max(least, key=lambda which: least[which])
    return least[bound], bound
