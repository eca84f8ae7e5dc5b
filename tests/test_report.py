"""What a run writes down about itself."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from trnt.report import draw_loss
from trnt.runs import read_rows


def test_a_row_cut_off_by_a_kill_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n" + '{"step": 2, "lo')
    assert read_rows(path) == [{"step": 1, "loss": 2.0}]
    assert read_rows(tmp_path / "none.jsonl") == []


def test_the_picture_is_an_image_that_shows_both_lines(tmp_path: Path) -> None:
    rows = [{"step": i, "loss": 8.0 / i} for i in range(1, 101)]
    path = draw_loss(rows, tmp_path / "loss.png")
    with Image.open(path) as image:
        image.load()
        assert image.width > 400
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}
    assert (0x08, 0x51, 0x9C) in colours
    assert (0x9E, 0xCA, 0xE1) in colours
