"""Running the checks and saying what they found."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trnt import console
from trnt.doctor import devices, driver, environment, packages, system
from trnt.doctor.machine import TIMEOUTS_S, Finding, Machine
from trnt.doctor.table import NO_DEVICE, Check

CHECKS: tuple[Check, ...] = (
    *system.CHECKS,
    *driver.CHECKS,
    *packages.CHECKS,
    *devices.CHECKS,
    *environment.CHECKS,
)
SYMBOLS = {"pass": ("✓", "32"), "warn": ("!", "33"), "fail": ("✗", "31"), "skip": ("-", "90")}
PROBE_TIMEOUT_S = max(TIMEOUTS_S.values()) + 30  # a file system that hangs is stopped too


@dataclass(frozen=True)
class Result:
    """A check, what it found, and how long that took."""

    check: Check
    finding: Finding
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.check.id,
            "group": self.check.group,
            "title": self.check.title,
            "status": self.finding.status,
            "detail": self.finding.detail,
            "fix": self.finding.fix,
            "seconds": round(self.seconds, 3),
        }


def chosen(only: Sequence[str], *, fast: bool) -> list[Check]:
    """The checks of some groups or ids, and what they need; all without `only`. `fast` leaves slow ones out."""
    wanted = {check.id for check in CHECKS if not only or check.id in only or check.group in only}
    for check in reversed(CHECKS):
        if check.id in wanted:
            wanted |= set(check.needs)
    return [check for check in CHECKS if check.id in wanted and not (fast and check.slow)]


def names() -> list[str]:
    """Every id and group."""
    return [*dict.fromkeys(check.group for check in CHECKS), *(check.id for check in CHECKS)]


def examine(machine: Machine, checks: Sequence[Check] = CHECKS, *, timeout_s: float = PROBE_TIMEOUT_S) -> list[Result]:
    """Run every check; a probe that itself fails or hangs becomes a finding."""
    results: dict[str, Result] = {}
    for check in checks:
        begin = time.perf_counter()
        bad = [name for name in check.needs if name in results and results[name].finding.status in ("fail", "skip")]
        if check.neuron and not machine.is_neuron:
            finding = NO_DEVICE
        elif bad:
            finding = Finding("skip", f"first: {bad[0]}")
        else:
            finding = _probe(check, machine, timeout_s)
        results[check.id] = Result(check, finding, time.perf_counter() - begin)
    return list(results.values())


def _probe(check: Check, machine: Machine, timeout_s: float) -> Finding:
    """A probe in a thread of its own, given up after a while."""
    found: list[Finding] = []

    def work() -> None:
        try:
            found.append(check.probe(machine))
        except Exception as error:
            said = f"the check itself failed: {type(error).__name__}: {error}"
            found.append(Finding("fail", said, "report this with 'trnt doctor --report FILE'"))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not found:
        return Finding(
            "fail", f"no answer within {timeout_s:.0f} s", "look at 'dmesg' and 'mount' for a disk that hangs"
        )
    return found[0]


def ready(results: Sequence[Result], *, strict: bool) -> bool:
    """Whether nothing failed (strict: nor warned)."""
    bad = {"fail", "warn"} if strict else {"fail"}
    return not any(result.finding.status in bad for result in results)


def summary(results: Sequence[Result], *, strict: bool) -> str:
    """One line."""
    counts = {status: sum(r.finding.status == status for r in results) for status in SYMBOLS}
    tally = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    if not ready(results, strict=strict):
        return f"not ready ({tally}): follow the fix lines"
    where = next((r.finding.detail for r in results if r.check.id == "device.kind"), "")
    return f"ready ({tally}): {where}" if where else f"ready ({tally})"


def render(results: Sequence[Result], *, strict: bool) -> str:
    """Grouped lines with symbols, `fix:` lines under what is wrong, and the summary."""
    import sys

    lines: list[str] = []
    group = ""
    width = max(len(result.check.title) for result in results)
    for result in results:
        if result.check.group != group:
            group = result.check.group
            lines += ["", group]
        symbol, code = SYMBOLS[result.finding.status]
        mark = console.colour(symbol, code, stream=sys.stdout)
        lines.append(f"  {mark} {result.check.title.ljust(width)}  {result.finding.detail}")
        if result.finding.fix and result.finding.status in ("warn", "fail"):
            lines.append(f"    fix: {result.finding.fix}")
    return "\n".join([*lines[1:], "", summary(results, strict=strict)])
