"""The picture is one, and holds the cases that compute."""

from __future__ import annotations

from pathlib import Path

from tests.benching.test_report import result, row
from trnt.benching.plot import draw


def test_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "roof.svg"
    rows = [row("loss", bytes=1e8), row("data", flops=0.0, bytes=1.0), row(bytes=1e9), row(bytes=1e9, interpreted=True)]
    assert draw(result(*rows, threads=2), path) == 2
    assert path.read_text().count("<svg") == 1


def test_nothing_to_draw_is_no_error(tmp_path: Path) -> None:
    assert draw(result(threads=2), tmp_path / "none.png") == 0
    assert (tmp_path / "none.png").read_bytes().startswith(b"\x89PNG")
