"""What is on the disk is what was recorded, and a folder takes its name in one step."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from trnt.checkpoint import written
from trnt.checkpoint.manifest import Record
from trnt.errors import TrntError, UsageError


def record(name: str, offset: int, data: bytes) -> Record:
    digest = hashlib.sha256(data).hexdigest()
    return Record(name, 0, "U8", (len(data),), "file", offset, len(data), digest, digest, 0)


def test_what_changed_on_the_disk_is_named(tmp_path: Path) -> None:
    data = os.urandom(1000)
    (tmp_path / "file").write_bytes(data)
    records = [record("a", 0, data[:400]), record("b", 400, data[400:999]), record("none", 999, b"")]
    written.check_written(tmp_path, records)
    written.check_written(tmp_path, records, 7)  # in pieces of seven bytes
    spoiled = bytearray(data)
    spoiled[500] ^= 1
    (tmp_path / "file").write_bytes(spoiled)
    with pytest.raises(TrntError, match="1 tensors are not what was written: file: b"):
        written.check_written(tmp_path, records)
    (tmp_path / "file").write_bytes(data[:600])
    with pytest.raises(TrntError, match="file: b"):
        written.check_written(tmp_path, records)


def test_all_bytes_are_written_even_by_a_disk_that_takes_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(written.os, "pwrite", lambda handle, data, at: real(handle, data[:3], at))
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    written.write_at(handle, 2, b"0123456789")
    os.close(handle)
    assert (tmp_path / "file").read_bytes() == b"\0\x000123456789"


@pytest.mark.parametrize("before", ["nothing", "folder", "link", "file"])
def test_a_finished_folder_takes_its_name_from_whatever_had_it(tmp_path: Path, before: str) -> None:
    target, partial, elsewhere = tmp_path / "out", tmp_path / ".out.partial", tmp_path / "elsewhere"
    partial.mkdir()
    (partial / "new").write_text("n")
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("p")
    if before == "folder":
        target.mkdir()
        (target / "old").write_text("o")
    elif before == "link":
        target.symlink_to(elsewhere)
    elif before == "file":
        target.write_text("f")
    written.sync_folder(partial)
    written.take_name(partial, target)
    assert [path.name for path in target.iterdir()] == ["new"]
    assert not target.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "out"]
    assert (elsewhere / "precious").exists()


def test_what_is_there_and_what_does_not_fit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    for taken in (tmp_path, tmp_path / "link"):
        with pytest.raises(UsageError, match="exists already"):
            written.refuse_existing(taken, force=False)
        written.refuse_existing(taken, force=True)
    written.refuse_existing(tmp_path / "new", force=False)
    written.check_room(tmp_path, 1)
    with pytest.raises(TrntError, match="are needed"):
        written.check_room(tmp_path, 1 << 60)
