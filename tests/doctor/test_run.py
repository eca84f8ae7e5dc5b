"""From findings to text and exit codes; probes that fail or hang."""

from __future__ import annotations

import time

import pytest

from trnt.doctor.machine import Finding, Machine
from trnt.doctor.run import CHECKS, chosen, examine, names, ready, render
from trnt.doctor.table import Check


def checks(*statuses: str) -> list[Check]:
    return [
        Check(f"g.{i}", f"Title {i}", lambda machine, s=status: Finding(s, f"detail {s}", f"fix {s}"), "looks")
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


def test_a_probe_that_fails_or_hangs_is_a_finding() -> None:
    def raises(machine: Machine) -> Finding:
        raise ValueError("broken")

    def hangs(machine: Machine) -> Finding:
        time.sleep(30)
        return Finding("pass", "")

    found = examine(Machine(), [Check("g.a", "A", raises, ""), Check("g.b", "B", hangs, "")], timeout_s=0.2)
    assert "ValueError: broken" in found[0].finding.detail
    assert "no answer within" in found[1].finding.detail
    assert all(result.finding.status == "fail" and result.finding.fix for result in found)


def test_groups_and_ids_are_chosen_with_what_they_need() -> None:
    assert [check.id for check in chosen([], fast=False)] == [check.id for check in CHECKS]
    assert {check.group for check in chosen(["packages"], fast=False)} == {"packages"}
    picked = [check.id for check in chosen(["device.compile"], fast=False)]
    assert picked.index("device.kind") < picked.index("device.matmul") < picked.index("device.compile")
    assert "tools.listing" in picked
    assert not any(check.slow for check in chosen([], fast=True))
    assert {"packages", "device.kind"} <= set(names())


def test_the_table_is_well_formed() -> None:
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids) >= 40
    groups = [check.group for check in CHECKS]
    assert len(set(groups)) == len([g for i, g in enumerate(groups) if i == 0 or groups[i - 1] != g])
    for number, check in enumerate(CHECKS):
        assert check.looks
        assert check.title
        assert set(check.needs) <= set(ids[:number]), f"{check.id} needs what comes after it"
