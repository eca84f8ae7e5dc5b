"""Kept results, and what became slower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trnt.benching import report
from trnt.errors import TrntError, UsageError


def row(name: str = "route", seconds: float = 1.0, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kernels": "cpu",
        "dtype": "float32",
        "sizes": {"tokens": 8},
        "seconds": seconds,
        "spread": 0.02,
        "repeats": 5,
        "correct": True,
        "max_error": 1e-7,
        "flops": 1e9,
        "flops_per_s": 1e9 / seconds,
        "bytes_per_s": 1e6,
        "peak_flops_per_s": 1e11,
        "peak_bytes_per_s": 1e10,
        "bound": "products",
        "of_bound": 0.5,
        "interpreted": False,
        **changes,
    }


def result(*rows: dict[str, Any], **machine: Any) -> dict[str, Any]:
    return report.result({"cpu": "a", **machine}, "tiny", list(rows))


@pytest.mark.parametrize(
    ("now", "then", "slower"),
    [(1.04, 1.0, False), (1.06, 1.0, True), (0.5, 1.0, False), (1.0, 1.0, False)],
)
def test_slower_is_beyond_the_noise(now: float, then: float, slower: bool) -> None:
    said, worse = report.compare(result(row(seconds=now)), result(row(seconds=then)))
    assert bool(worse) == slower
    assert len(said) + len(worse) == 1


def test_the_spreads_of_both_are_noise() -> None:
    assert report.compare(result(row(seconds=1.2, spread=0.1)), result(row(spread=0.15)))[1] == []
    assert report.compare(result(row(seconds=1.3, spread=0.1)), result(row(spread=0.15)))[1]


def test_what_cannot_be_compared_is_said() -> None:
    said, worse = report.compare(result(row(sizes={"tokens": 9})), result(row()))
    assert not worse
    assert "nothing to compare" in said[0]
    said, worse = report.compare(result(row(seconds=9.0, spread=None)), result(row()))
    assert not worse
    assert "not compared" in said[0]
    said, _ = report.compare(result(row(), threads=2), result(row()))
    assert "another machine" in said[-1]


def test_a_slower_machine_is_named() -> None:
    _, worse = report.compare(result(row(seconds=2.0, peak_flops_per_s=5e10)), result(row()))
    assert "the machine's own rate is 0.50" in worse[0]


def test_a_kept_result_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    report.save(path, result(row()), force=False)
    assert report.load(path) == result(row())
    with pytest.raises(UsageError, match="exists already"):
        report.save(path, result(row()), force=False)
    report.save(path, result(row("loss")), force=True)
    assert report.load(path)["cases"][0]["name"] == "loss"
    assert [one.name for one in tmp_path.iterdir()] == ["before.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "no",
        '{"schema_version": 9}',
        '{"schema_version": 1, "cases": [{}]}',
        '{"schema_version": 1}',
        "\xff",
    ],
)
def test_what_is_no_result(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TrntError) as caught:
        report.load(path)
    assert "trnt bench --save" in caught.value.fix


def test_a_row_with_a_value_missing_is_no_result(tmp_path: Path) -> None:
    for name in ("seconds", "spread", "sizes", "peak_flops_per_s"):
        kept = result(row())
        del kept["cases"][0][name]
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(kept))
        with pytest.raises(TrntError, match="no result"):
            report.load(path)


def test_a_result_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no"):
        report.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.234, "1.23 s"), (0.01, "10 ms"), (2.5e-5, "25 us"), (1e-9, "0.001 us"), (100.0, "100 s")]
)
def test_times(seconds: float, text: str) -> None:
    assert report.time_text(seconds) == text


def test_the_table_says_what_is_wrong_and_what_was_interpreted() -> None:
    lines = report.table([row(correct=False), row(interpreted=True, spread=None)]).splitlines()
    assert "NO (1.0e-07)" in lines[1]
    assert "50%" in lines[1]
    assert "interpreter" in lines[2]
    assert "one call" in lines[2]
    assert "%" not in lines[2]
