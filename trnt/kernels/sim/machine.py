"""One run of a kernel: which core it runs on, what it has allocated, which instructions it has issued.

The state buffer's use is worked out at the end, from when each tensor was first and last touched: the peak of live
bytes in program order is the least that any allocation needs. Inside a run-time loop only the first trip counts (the
compiler makes each tensor of the body once); what comes from outside the loop and is used in it lives until its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from trnt.kernels import hardware
from trnt.kernels.sim import numerics, refusal
from trnt.kernels.sim.refusal import refuse

EMPTY, CLEARED, WRITTEN, READ = 0, 1, 2, 3  # what an element holds: nothing, zeros, a value, a value that was read
NOT_MATMUL, MATMUL = 0, 1  # who wrote an element of PSUM


@dataclass(eq=False)
class Life:
    """When a tensor on chip was first and last touched: all that is kept of it once the kernel has let it go."""

    buffer: str
    bytes_per_partition: int
    where: str
    first: int = -1
    last: int = -1


@dataclass(eq=False)
class Storage:
    """The memory behind a tensor and its views. On chip the first dimension is the partition."""

    shape: tuple[int, ...]
    dtype: str
    buffer: str
    name: str
    where: str
    data: np.ndarray  # flat
    state: np.ndarray | None  # flat, EMPTY to READ; None: all written, as kernel inputs are
    depth: int
    """How many run-time loops were open when it was made."""
    life: Life | None = None
    """None for what does not count: HBM, and what later trips of a run-time loop make."""
    address: tuple[int, int] | None = None
    """(first partition, first byte within it) where the kernel placed it by hand."""
    dead: bool = False
    number: int = -1
    """In the order of making; -1 for a kernel's inputs."""
    by_matmul: np.ndarray | None = None  # PSUM only

    @property
    def bytes_per_partition(self) -> int:
        return self.data.size // self.shape[0] * numerics.size(self.dtype)

    @property
    def on_chip(self) -> bool:
        return self.buffer in ("sbuf", "psum")


@dataclass
class Loop:
    """A run-time loop that is going on."""

    trip: int = 0
    made: list[Storage] = field(default_factory=list)
    touched: dict[int, Storage] = field(default_factory=dict)


class Use(NamedTuple):
    """One access of an instruction. storage: its number; offset: of the first element, -1 for rows picked by index."""

    storage: int
    offset: int
    writes: bool


@dataclass(frozen=True)
class Issued:
    """One instruction as the cost model wants it. rows: partitions; columns: elements of each."""

    name: str
    engine: str
    rows: int
    columns: int
    moved: int
    """Bytes that a DMA moves, or 0."""
    dtype: str
    uses: tuple[Use, ...] = ()
    narrow: bool = False
    """Whether every tile is 16-bit, and in the state buffer."""
    half: bool = False
    """Whether every tile is 16-bit, one of them in PSUM."""
    run: int = 0
    """Bytes that a DMA finds together, on either side."""


@dataclass(frozen=True)
class Peak:
    """The most that was alive at one time. sbuf: bytes per partition; psum: banks; where: the line that made it so."""

    sbuf: int
    psum_banks: int
    where: str


class Machine:
    """The state of one run."""

    def __init__(self, core: hardware.Core, *, reverse: bool = False) -> None:
        self.core = core
        self.reverse = reverse
        self.now = 0
        self.lives: list[Life] = []
        self.loops: list[Loop] = []
        self.issued: list[Issued] = []
        self.accesses: list[tuple[Storage, int, bool]] = []
        self.sizes: list[tuple[str, int]] = []  # of each storage by its number: buffer, bytes per partition
        self.trips: list[int] = []  # instructions before each trip of a run-time loop, and before what follows the loop
        self.placed: list[Storage] = []
        self.scalar_sums: np.ndarray | None = None  # the scalar engine's reduce registers

    def allocate(self, shape: tuple[int, ...], dtype: str, buffer: str, name: str, address: Any) -> Storage:
        if dtype not in numerics.DTYPES:
            refuse("dtype", f"no dtype {dtype!r}")
        if not shape or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in shape):
            refuse("shape", f"a tensor of shape {shape}: its sizes must be positive integers")
        where = refusal.line()
        on_chip = buffer in ("sbuf", "psum")
        if on_chip:
            if len(shape) < 2:
                refuse("shape", f"a tensor of shape {shape} on chip: it needs a partition and a free dimension")
            if shape[0] > self.core.partitions:
                refuse("partitions", f"a tile of {shape[0]} partitions: at most {self.core.partitions}")
        count = int(np.prod(shape))
        data = np.empty(count, numerics.DTYPES[dtype])
        # What was never written is poison besides, as in the official simulator.
        data.fill(4 if dtype in numerics.INTEGERS else (False if dtype == "bool" else np.nan))
        first_trip = all(loop.trip == 0 for loop in self.loops)
        made = Storage(tuple(shape), dtype, buffer, name, where, data, np.zeros(count, np.uint8), len(self.loops))
        made.number = len(self.sizes)
        self.sizes.append((buffer, made.bytes_per_partition))
        if buffer == "psum":
            made.by_matmul = np.zeros(count, np.uint8)
        if address is not None and on_chip:
            made.address = (int(address[0]), int(address[1]))
            self.placed.append(made)
        if self.loops:
            self.loops[-1].made.append(made)
        if on_chip and first_trip:
            made.life = Life(buffer, made.bytes_per_partition, where)
            self.lives.append(made.life)
            self.check_one(made)
        return made

    def check_one(self, made: Storage) -> None:
        core = self.core
        size = made.bytes_per_partition
        if made.buffer == "sbuf" and size > core.sbuf_usable:
            refuse("sbuf", f"one tensor of {size:,} bytes per partition: {core.name} has {core.sbuf_usable:,}")
        if made.buffer == "psum" and size > core.psum_banks * core.psum_bank_bytes:
            refuse("banks", f"one tensor of {size:,} bytes per partition: PSUM has {core.psum_banks} x 2,048")

    def used(self, storage: Storage, offset: int, *, writes: bool) -> None:
        """An instruction's access, for its dependencies."""
        self.touch(storage)
        self.accesses.append((storage, offset, writes))

    def touch(self, storage: Storage) -> None:
        if storage.dead:
            refuse("escape", f"the tensor made at {storage.where} belongs to a run-time loop that has ended")
        life = storage.life
        if life is not None and all(loop.trip == 0 for loop in self.loops[: storage.depth]):
            if life.first < 0:
                life.first = self.now
            life.last = max(life.last, self.now)
        for loop in self.loops[storage.depth :]:
            loop.touched[id(storage)] = storage

    def overlay(self, storage: Storage) -> None:
        """What a write to a placed tensor leaves of the others that share its bytes: nothing."""
        assert storage.address is not None
        for other in self.placed:
            if other is storage or other.buffer != storage.buffer or other.state is None:
                continue
            assert other.address is not None
            mine, theirs = storage.address, other.address
            partitions = mine[0] < theirs[0] + other.shape[0] and theirs[0] < mine[0] + storage.shape[0]
            after, before = mine[1] + storage.bytes_per_partition, theirs[1] + other.bytes_per_partition
            if partitions and mine[1] < before and theirs[1] < after:
                other.state.fill(EMPTY)

    def issue(self, name: str, engine: str, rows: int, columns: int, dtype: str, moved: int = 0, run: int = 0) -> None:
        tiles = [storage for storage, _, _ in self.accesses if storage.on_chip]
        short = all(numerics.size(tile.dtype) == 2 for tile in tiles)
        psum = any(tile.buffer == "psum" for tile in tiles)
        uses = tuple(Use(storage.number, offset, writes) for storage, offset, writes in self.accesses)
        self.accesses.clear()
        self.issued.append(
            Issued(name, engine, rows, columns, moved, dtype, uses, short and not psum, short and psum, run)
        )

    @contextmanager
    def loop(self) -> Iterator[Loop]:
        """A run-time loop: its tensors end with it, those used in it live until then."""
        loop = Loop()
        self.loops.append(loop)
        self.trips.append(len(self.issued))
        try:
            yield loop
        finally:
            self.loops.pop()
            for storage in loop.made:
                storage.dead = True
            for storage in loop.touched.values():
                self.touch(storage)

    def end_trip(self, loop: Loop) -> None:
        for storage in loop.made:
            storage.dead = True
        loop.made.clear()
        loop.trip += 1
        self.trips.append(len(self.issued))

    def peak(self) -> Peak:
        """The most bytes and banks alive at one time. Raises Refused where that is more than there is."""
        core = self.core
        events: list[tuple[int, int, Life]] = []
        for life in self.lives:
            if life.first >= 0:
                events += [(life.first, 1, life), (life.last + 1, -1, life)]
        most_sbuf = sbuf = most_banks = banks = 0
        where = ""
        for _, change, life in sorted(events, key=lambda event: event[:2]):
            if life.buffer == "psum":
                banks += change * -(-life.bytes_per_partition // core.psum_bank_bytes)
                most_banks = max(most_banks, banks)
                if banks > core.psum_banks:
                    refuse("banks", f"{banks} PSUM banks alive at one time: there are {core.psum_banks}", life.where)
                continue
            sbuf += change * life.bytes_per_partition
            if sbuf > most_sbuf:
                most_sbuf, where = sbuf, life.where
            if sbuf > core.sbuf_usable:
                refuse(
                    "sbuf",
                    f"{sbuf:,} bytes per partition alive at one time: {core.name} has {core.sbuf_usable:,}",
                    life.where,
                )
        return Peak(most_sbuf, most_banks, where)


RUNNING: list[Machine] = []


def machine() -> Machine:
    """The run that is going on. Refused outside of one."""
    if not RUNNING:
        refuse("language", "an instruction outside of a kernel: call the kernel, or nki.simulate(kernel)")
    return RUNNING[-1]
