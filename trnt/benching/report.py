"""Results for people and for the next time: the table, the file, what became slower. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trnt import console
from trnt.checkpoint.written import refuse_existing
from trnt.errors import TrntError, UsageError
from trnt.runs import write_json

SCHEMA = 1
LEAST_NOISE = 0.05  # a difference below it is never called one, however still the machine was
MACHINE = 0.1  # a machine whose own rates differ by more than this is another, or busy
HEADER = ("case", "kernels", "tokens", "correct", "time", "spread", "GFLOP/s", "GB/s", "bound by", "of it")


def listing(kinds: Mapping[str, Any]) -> str:
    """All cases with what they are, who computes them and their tokens."""
    rows = ((name, ", ".join(case.kernels), f"{case.tokens:,}", case.about) for name, case in kinds.items())
    return console.table(("case", "kernels", "tokens", "what"), rows)


def time_text(seconds: float) -> str:
    """1.25 s, 3.4 ms or 12 us: three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size or unit == "us":
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    says = f"{'yes' if row['correct'] else 'NO'} ({row['max_error']:.1e})"
    interpreted = row["interpreted"]
    return (
        row["name"],
        row["kernels"],
        f"{row['sizes']['tokens']:,}",
        says,
        time_text(row["seconds"]),
        f"{row['spread']:.0%} of {row['repeats']}" if row["spread"] is not None else "one call",
        f"{row['flops_per_s'] / 1e9:.1f}" if row["flops"] and not interpreted else "-",
        f"{row['bytes_per_s'] / 1e9:.1f}" if not interpreted else "-",
        row["bound"] if not interpreted else "interpreter",
        f"{row['of_bound']:.0%}" if not interpreted else "-",
    )


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    return console.table(HEADER, (cells(row) for row in rows))


def result(machine: Mapping[str, Any], model: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What --json prints and --save keeps."""
    return {"schema_version": SCHEMA, "machine": dict(machine), "model": model, "cases": rows}


def save(path: Path, found: Mapping[str, Any], *, force: bool) -> None:
    """Keep a result. Raises UsageError where something is already, TrntError where it cannot be written."""
    refuse_existing(path, force=force, what="file")
    try:
        write_json(path, dict(found))
    except OSError as error:
        raise TrntError(f"cannot write {path}: {error.strerror}", "name another file") from error


def load(path: Path) -> dict[str, Any]:
    """A kept result. Raises UsageError where there is none, TrntError for anything else."""
    fix = f"make one: trnt bench --save {path}"
    try:
        found = json.loads(path.read_text())
        schema = found["schema_version"]
        for row in found["cases"] if schema == SCHEMA else ():
            identity(row)
            float(row["spread"] or 0)
            sum(float(row[name]) for name in ("seconds", "peak_flops_per_s", "peak_bytes_per_s"))
    except FileNotFoundError:
        raise UsageError(f"there is no {path}", fix) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrntError(f"{path} is no result of trnt bench: {type(error).__name__}: {error}", fix) from None
    if schema != SCHEMA:
        raise TrntError(f"{path} has the schema {schema}, this trnt writes {SCHEMA}", fix)
    return dict(found)


def identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two rows the same measurement."""
    return (row["name"], row["kernels"], row["dtype"], tuple(sorted(row["sizes"].items())))


def compare(now: Mapping[str, Any], then: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(what to say, the regressions): rows of both, slower beyond the spreads of both added up and 5 %."""
    said: list[str] = []
    worse: list[str] = []
    before = {identity(row): row for row in then["cases"]}
    shared = 0
    for row in now["cases"]:
        old = before.get(identity(row))
        if old is None:
            continue
        shared += 1
        if row["spread"] is None or old["spread"] is None:
            said.append(f"not compared: {row['name']} ({row['kernels']}), of which one call was timed")
            continue
        ratio = row["seconds"] / old["seconds"]
        noise = max(LEAST_NOISE, row["spread"] + old["spread"])
        what = f"{row['name']} ({row['kernels']}): {time_text(old['seconds'])} -> {time_text(row['seconds'])}"
        what += f", {ratio:.2f} of it (noise {noise:.0%})"
        which = "peak_flops_per_s" if row["bound"] == "products" else "peak_bytes_per_s"
        rate = row[which] / old[which]
        if abs(rate - 1) > MACHINE:
            what += f"; the machine's own rate is {rate:.2f} of what it was"
        if ratio > 1 + noise:
            worse.append(what)
        else:
            said.append(("faster: " if ratio < 1 / (1 + noise) else "as before: ") + what)
    if not shared:
        said.append("nothing to compare: no case of that file ran now with the same sizes, dtype and kernels")
    if dict(now["machine"]) != dict(then["machine"]):
        said.append("another machine, device or torch than that file's")
    return said, worse
