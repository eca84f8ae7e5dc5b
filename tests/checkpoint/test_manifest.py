"""The record of a conversion: taken up again only when it is of the same one, and by one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trnt.checkpoint import manifest
from trnt.checkpoint.manifest import Manifest, Record
from trnt.errors import TrntError

ONE = Record("a", 0, "F32", (2, 3), "model.safetensors", 88, 24, "00", "00", 0)
TWO = replace(ONE, tensor="b", first=4)


def test_records_come_back_and_a_line_cut_off_does_not(tmp_path: Path) -> None:
    first = Manifest(tmp_path, {"fingerprint": "x"})
    assert not first.resumable
    first.add(ONE)
    first.add(TWO)
    first.close()
    path = tmp_path / manifest.NAME
    path.write_bytes(path.read_bytes()[:-20])
    again = Manifest(tmp_path, {"fingerprint": "x"})
    assert again.resumable
    assert again.records == {ONE.key: ONE}
    again.add(TWO)
    again.close()
    head, records = manifest.read(path)
    assert (head["fingerprint"], records) == ("x", [ONE, TWO])


def test_another_conversion_s_records_are_not_taken_up(tmp_path: Path) -> None:
    first = Manifest(tmp_path, {"fingerprint": "x"})
    first.add(ONE)
    first.close()
    other = Manifest(tmp_path, {"fingerprint": "y"})
    assert (other.resumable, other.records) == (False, {})
    other.close()


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    first = Manifest(tmp_path, {})
    with pytest.raises(TrntError, match="another conversion"):
        Manifest(tmp_path, {})
    first.close()
    Manifest(tmp_path, {}).close()


@pytest.mark.parametrize("content", ["", "no json\n", "\x00"])
def test_a_file_that_is_no_manifest_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / manifest.NAME).write_text(content)
    with pytest.raises(TrntError, match="cannot read"):
        manifest.read(tmp_path / manifest.NAME)
