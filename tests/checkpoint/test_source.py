"""What every source shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnt.checkpoint.source import LISTED, Info, pieces, refuse
from trnt.errors import TrntError


def test_pieces_cover_everything_once() -> None:
    assert list(pieces(10, 4)) == [(0, 4), (4, 4), (8, 2)]
    assert list(pieces(0, 4)) == []
    assert list(pieces(4, 4)) == [(0, 4)]


def test_all_problems_are_listed_at_once() -> None:
    refuse(Path("x"), [], "fix")
    with pytest.raises(TrntError) as caught:
        refuse(Path("x"), [f"problem {n}" for n in range(LISTED + 2)], "do this")
    assert "problem 0; problem 1; " in caught.value.cause
    assert caught.value.cause.endswith("and 2 more")
    assert caught.value.fix == "do this"


def test_sizes_follow_from_shape_and_dtype() -> None:
    assert (Info("BF16", (3, 4)).numel, Info("BF16", (3, 4)).nbytes) == (12, 24)
    assert Info("F32", ()).nbytes == 4
