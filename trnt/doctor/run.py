"""Running the checks and saying what they found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trnt import console
from trnt.doctor.checks import CHECKS, Check, Finding, Machine

SYMBOLS = {"pass": ("✓", "32"), "warn": ("!", "33"), "fail": ("✗", "31"), "skip": ("-", "90")}


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


def examine(machine: Machine, checks: Sequence[Check] = CHECKS) -> list[Result]:
    """Run every check; a probe that itself fails becomes a finding."""
    results = []
    for check in checks:
        begin = time.perf_counter()
        try:
            finding = check.probe(machine)
        except Exception as error:
            finding = Finding("fail", f"the check itself failed: {type(error).__name__}: {error}", "report this")
        results.append(Result(check, finding, time.perf_counter() - begin))
    return results


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
