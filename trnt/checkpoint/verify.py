"""Looking at every value of a checkpoint: counts, sums, checksums, and differences from another checkpoint.

Two folders are compared through the family's table, whichever format each is in: a stretch of the one against the
stretch of the other that the table says is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trnt import console
from trnt.checkpoint import manifest, mapping
from trnt.checkpoint.dtypes import FLOATS, size_of, torch_dtype
from trnt.checkpoint.reordered import ordered
from trnt.checkpoint.source import PIECE, Source, pieces
from trnt.checkpoint.written import WORKERS, check_written
from trnt.errors import TrntError
from trnt.models.registry import ModelEntry


@dataclass(frozen=True)
class Seen:
    """One tensor, looked at."""

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    sum: float
    """In float64, over the finite values."""
    nan: int
    infinite: int
    other: str | None = None
    """The tensor it was compared with."""
    other_dtype: str | None = None
    max_difference: float | None = None
    """Largest magnitude of a difference; infinite where only one side is finite."""
    different: int | None = None
    """Values whose bits differ, after the wider dtype was cast to the narrower."""


def look(source: Source, names: Iterable[str]) -> list[Seen]:
    """Sum, NaN and infinite values of every tensor."""
    wanted = list(names)

    def one(name: str, ticker: Any) -> Seen:
        info = source.tensors[name]
        total, nan, infinite = 0.0, 0, 0
        for values in _values(source, name, 0, info.numel):
            part, n, i = _counts(values)
            total, nan, infinite = total + part, nan + n, infinite + i
            ticker(values.nbytes)
        return Seen(name, info.dtype, info.shape, total, nan, infinite)

    return _spread("reading", wanted, sum(source.tensors[name].nbytes for name in wanted), one)


@dataclass(frozen=True)
class Pair:
    """A stretch here and the same stretch there."""

    tensor: str
    first: int
    other: str
    other_first: int
    count: int


def compare_models(a: Source, b: Source, entry: ModelEntry, *, title: str = "comparing") -> list[Seen]:
    """Every value of a model in two folders, the smaller of the two; b's rows in a's order. The rows are about `a`."""
    return compare(a, ordered(b, entry, a.kind), pairs(a, b, entry), title=title)


def pairs(a: Source, b: Source, entry: ModelEntry) -> list[Pair]:
    """What the table says is the same in two folders, for every tensor of a model (the smaller of the two)."""
    here = mapping.places(entry, a.kind, a.tensors)
    there = mapping.places(entry, b.kind, b.tensors)
    return [Pair(*here[link], *there[link], link.numel) for link in here]


def same_names(a: Source, b: Source) -> list[Pair]:
    """Pairs of two folders of a model that no table knows. Raises TrntError when their tensors are not alike."""
    problems = [f"only one has {name}" for name in sorted(a.tensors.keys() ^ b.tensors.keys())]
    problems += [
        f"{name} is {list(a.tensors[name].shape)} and {list(b.tensors[name].shape)}"
        for name in a.tensors
        if name in b.tensors and a.tensors[name].shape != b.tensors[name].shape
    ]
    if problems:
        raise TrntError(f"{a.path} and {b.path}: {'; '.join(problems[:20])}", "compare two checkpoints of one model")
    return [Pair(name, 0, name, 0, info.numel) for name, info in a.tensors.items()]


def compare(a: Source, b: Source, wanted: list[Pair], *, title: str = "comparing") -> list[Seen]:
    """Every pair, value by value; the rows are about `a`."""

    def one(pair: Pair, ticker: Any) -> Seen:
        left, right = a.tensors[pair.tensor], b.tensors[pair.other]
        narrow = min((left.dtype, right.dtype), key=size_of)
        total, nan, infinite, different, largest = 0.0, 0, 0, 0, 0.0
        here = _values(a, pair.tensor, pair.first, pair.count)
        there = _values(b, pair.other, pair.other_first, pair.count)
        for x, y in zip(here, there, strict=True):
            part, n, i = _counts(x)
            total, nan, infinite = total + part, nan + n, infinite + i
            changed, gap = _difference(x, y, narrow)
            different, largest = different + changed, max(largest, gap)
            ticker(x.nbytes)
        shape = left.shape if pair.count == left.numel else (pair.count,)
        name = pair.tensor if pair.count == left.numel else f"{pair.tensor}[{pair.first // pair.count}]"
        return Seen(name, left.dtype, shape, total, nan, infinite, pair.other, right.dtype, largest, different)

    total = sum(pair.count * size_of(a.tensors[pair.tensor].dtype) for pair in wanted)
    return _spread(title, wanted, total, one)


def _spread(title: str, wanted: list[Any], total: int, one: Callable[[Any, Any], Seen]) -> list[Seen]:
    """`one` of everything in a pool, in order, with progress in bytes."""
    import torch

    lock = threading.Lock()
    threads = torch.get_num_threads()
    with console.progress(title, total=total, unit="bytes") as ticker, ThreadPoolExecutor(WORKERS) as pool:

        def tick(amount: int) -> None:
            with lock:
                ticker.advance(amount)

        def alone(value: Any) -> Seen:
            torch.set_num_threads(1)
            return one(value, tick)

        try:
            return list(pool.map(alone, wanted))
        finally:
            torch.set_num_threads(threads)


def _values(source: Source, name: str, first: int, count: int) -> Iterable[Any]:
    """A stretch as torch tensors of a few megabytes; at least one, empty or not."""
    import torch

    info = source.tensors[name]
    most = PIECE // 8  # values, so that two folders of different dtypes come in equal pieces
    for begin, number in pieces(count, most):
        buffer = bytearray(number * size_of(info.dtype))
        source.read(name, first + begin, memoryview(buffer))
        yield torch.frombuffer(buffer, dtype=torch_dtype(info.dtype))


def _counts(values: Any) -> tuple[float, int, int]:
    """(sum of the finite values in float64, NaN values, infinite values)."""
    import torch

    if not values.dtype.is_floating_point or values.element_size() == 1:
        return float(values.to(torch.float32).double().sum()), 0, 0
    total = float(values.sum(dtype=torch.float64))
    if total - total == 0:
        return total, 0, 0
    finite = torch.isfinite(values)
    nan = int(torch.isnan(values).sum())
    return float(values[finite].sum(dtype=torch.float64)), nan, int((~finite).sum()) - nan


def _difference(x: Any, y: Any, narrow: str) -> tuple[int, float]:
    """(values that differ, the largest difference) once both are in the narrower dtype."""
    import torch

    if x.dtype == y.dtype and torch.equal(x.view(torch.uint8), y.view(torch.uint8)):
        return 0, 0.0
    dtype = torch_dtype(narrow)
    x, y = x.to(dtype), y.to(dtype)
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size_of(narrow)]
    differs = x.view(width) != y.view(width)
    if not bool(differs.any()):
        return 0, 0.0
    gap = (x[differs].double() - y[differs].double()).abs()
    gap = torch.where(torch.isnan(gap), torch.inf, gap)
    return int(differs.sum()), float(gap.max())


def checksums(folder: Path) -> int | None:
    """Check a folder against the manifest that a conversion left in it. Returns the number of parts, None without one.

    Raises TrntError naming what differs.
    """
    path = folder / manifest.NAME
    if not path.is_file():
        return None
    _, records = manifest.read(path)
    missing = sorted({record.file for record in records if not (folder / record.file).is_file()})
    if missing:
        raise TrntError(f"{folder}: the file {missing[0]} is missing", "copy or convert the checkpoint again")
    check_written(folder, records)
    return len(records)


def must_be_same(rows: list[Seen], where: Path) -> None:
    """Raise TrntError when any row differs."""
    bad = [row for row in rows if row.different]
    if bad:
        raise TrntError(
            f"{where}: {len(bad)} tensors differ from their source: {', '.join(row.tensor for row in bad[:20])}",
            "report this: what was written reads back differently",
        )


def table(rows: list[Seen]) -> str:
    """For people."""
    compared = any(row.other is not None for row in rows)
    header = ["tensor", "dtype", "shape", "sum", "NaN", "inf"] + (["max difference", "different"] if compared else [])
    cells = []
    for row in rows:
        cell = [row.tensor, row.dtype, str(list(row.shape)), f"{row.sum:.6g}", str(row.nan), str(row.infinite)]
        if compared:
            gap = 0.0 if row.max_difference is None else row.max_difference
            cell += [f"{gap:.3g}", str(row.different)]
        cells.append(cell)
    return console.table(header, cells)


def as_json(rows: list[Seen]) -> list[dict[str, Any]]:
    """For programs: infinite differences as text, since JSON has none."""
    found = []
    for row in rows:
        one = asdict(row)
        if row.max_difference == float("inf"):
            one["max_difference"] = "inf"
        found.append({key: value for key, value in one.items() if value is not None})
    return found


def unlike_dtype(rows: list[Seen]) -> bool:
    """Whether two compared folders are in different dtypes."""
    return any(row.other_dtype not in (None, row.dtype) for row in rows if row.dtype in FLOATS)
