"""docs/doctor.md is what the tables say."""

from __future__ import annotations

from pathlib import Path

from trnt.doctor.page import page
from trnt.doctor.run import CHECKS


def test_the_page_is_written_from_the_tables() -> None:
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    assert text == page(), "write it again: python -m trnt.doctor.page > docs/doctor.md"
    assert all(f"`{check.id}`" in text for check in CHECKS)
