"""From findings to text and exit codes."""

from __future__ import annotations

import pytest

from trnt.doctor.checks import Check, Finding, Machine
from trnt.doctor.run import examine, ready, render


def checks(*statuses: str) -> list[Check]:
    return [
        Check(f"g.{i}", "g", f"Title {i}", lambda machine, s=status: Finding(s, f"detail {s}", f"fix {s}"))
        for i, status in enumerate(statuses)
    ]


@pytest.mark.parametrize(
    ("statuses", "ok", "strict_ok"),
    [(("pass", "skip"), True, True), (("pass", "warn"), True, False), (("fail", "warn"), False, False)],
)
def test_what_counts_as_ready(statuses: tuple[str, ...], ok: bool, strict_ok: bool) -> None:
    results = examine(Machine(), checks(*statuses))
    assert ready(results, strict=False) == ok
    assert ready(results, strict=True) == strict_ok


def test_fix_lines_stand_under_what_is_wrong_only() -> None:
    text = render(examine(Machine(), checks("pass", "warn", "fail", "skip")), strict=False)
    assert text.count("fix: fix") == 2
    for symbol in "✓!✗-":
        assert f"  {symbol} Title" in text
    assert text.splitlines()[-1].startswith("not ready (1 pass, 1 warn, 1 fail, 1 skip)")
    assert "\x1b" not in text


def test_a_probe_that_crashes_is_a_finding() -> None:
    def crash(machine: Machine) -> Finding:
        raise OSError("no such thing")

    result = examine(Machine(), [Check("g.x", "g", "X", crash)])[0]
    assert result.finding.status == "fail"
    assert "no such thing" in result.finding.detail
