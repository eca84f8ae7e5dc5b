"""Streams, numbers for people, and progress without a terminal."""

from __future__ import annotations

import json

import pytest

from trnt import console
from trnt.errors import TrntError


@pytest.fixture(autouse=True)
def as_it_was() -> None:
    console.configure()


def test_results_go_to_stdout_and_messages_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console.result("r")
    console.result_json({"a": "ü"})
    console.note("n")
    console.warn("w")
    console.error(TrntError("c", "f"))
    out, err = capsys.readouterr()
    assert out.startswith("r\n{")
    assert json.loads(out[2:]) == {"schema_version": 1, "a": "ü"}
    assert err == "n\nwarning: w\nerror: c\nfix: f\n"


def test_quiet_silences_messages_only(capsys: pytest.CaptureFixture[str]) -> None:
    console.configure(quiet=True)
    console.note("n")
    console.warn("w")
    with console.progress("p", 10) as ticker:
        ticker.advance(10)
    assert capsys.readouterr().err == "warning: w\n"


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (console.human_bytes, 512, "512 B"),
        (console.human_bytes, 1536, "1.5 KiB"),
        (console.human_bytes, 7.1 * 2**30, "7.1 GiB"),
        (console.human_count, 1_906_000_000, "1.91 B"),
        (console.human_count, 545_000, "545.00 k"),
        (console.human_count, 7, "7"),
        (console.human_time, 75, "1:15"),
        (console.human_time, 3675, "1:01:15"),
        (console.human_time, -3, "0:00"),
    ],
)
def test_numbers_for_people(function: object, value: float, text: str) -> None:
    assert function(value) == text  # type: ignore[operator]


def test_tables_are_never_cut() -> None:
    wide = "x" * 300
    lines = console.table(("a", "b"), [("1", wide), ("22", "y")]).splitlines()
    assert lines == ["a   b", f"1   {wide}", "22  y"]


def test_progress_without_a_terminal_is_plain_lines_seconds_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    clock = iter([100.0, 101.0, 106.0, 107.0, 108.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with console.progress("copy", 50, "files") as ticker:
        for _ in range(5):
            ticker.advance(10, "fast")
    # the first, one after five seconds, and always the last
    lines = [f"copy: {done}/50 files fast" for done in (10, 30, 50)]
    assert capsys.readouterr().err.splitlines() == lines
