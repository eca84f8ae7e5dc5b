"""Compiled code lies in the user's cache, and the time that it took is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from trnt import compiling


def test_the_place_is_the_user_s_cache_unless_it_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRNT_CACHE", str(tmp_path))
    monkeypatch.delenv(compiling.INDUCTOR, raising=False)
    assert compiling.keep() == str(tmp_path / "inductor") == os.environ[compiling.INDUCTOR]
    monkeypatch.setenv(compiling.INDUCTOR, "/elsewhere")
    assert compiling.keep() == "/elsewhere"


def test_compiling_takes_time_and_running_does_not() -> None:
    before = compiling.seconds()
    compiled = torch.compile(lambda x: (x * 2).sin().sum(), backend="aot_eager")
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward()
    after = compiling.seconds()
    assert after > before
    compiled(x).backward()
    assert compiling.seconds() == after


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([], 0),
        ([(5, 3)], 3),
        ([(20, 1), (0, 4)], 5),
        ([(0, 10), (2, 3)], 10),  # one inside the other
        ([(0, 10), (8, 5), (13, 2)], 15),
    ],
)
def test_overlapping_work_counts_once(spans: list[tuple[int, int]], length: int) -> None:
    assert compiling.covered(spans) == length
