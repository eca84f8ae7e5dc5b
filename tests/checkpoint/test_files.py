"""A folder is there whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnt.checkpoint.files import new_folder
from trnt.errors import TrntError, UsageError


def test_a_failure_half_way_leaves_the_old_folder_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").write_text("kept")

    def fail_half_way() -> None:
        with new_folder(target, force=True) as folder:
            (folder / "new").write_text("x")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail_half_way()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (target / "old").read_text() == "kept"
    with new_folder(target, force=True) as folder:
        (folder / "new").write_text("x")
    assert [p.name for p in target.iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_existing_folder_needs_force(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists already"), new_folder(tmp_path, force=False):
        pytest.fail("opened")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrntError, match="cannot write"), new_folder(tmp_path / "file" / "out", force=False):
        pytest.fail("opened")
