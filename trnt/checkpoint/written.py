"""What is on the disk: written in place, hashed, compared with its records, given its name."""

from __future__ import annotations

import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trnt import console
from trnt.checkpoint.manifest import Record
from trnt.checkpoint.safe import read_at
from trnt.checkpoint.source import PIECE, pieces
from trnt.errors import TrntError, UsageError

WORKERS = min(8, os.cpu_count() or 1)
SPARE = 16 << 20  # bytes of a disk that are left for headers, configs and tokenizers


def write_at(handle: int, offset: int, data: Any) -> None:
    """Write all of `data` at a place in a file. Raises OSError."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(handle, view[done:], offset + done)


def hash_of(handle: int, record: Record, piece: int = PIECE) -> str:
    """SHA-256 of a record's data as it is in the file; empty when the file is too short."""
    found, buffer = hashlib.sha256(), bytearray(min(piece, record.bytes))
    for first, count in pieces(record.bytes, piece):
        view = memoryview(buffer)[:count]
        try:
            read_at(handle, record.offset + first, view)
        except OSError:
            return ""
        found.update(view)
    return found.hexdigest()


def check_written(folder: Path, records: list[Record], piece: int = PIECE) -> None:
    """Read everything in a folder back and compare with the checksums. Raises TrntError naming what differs."""
    bad: list[str] = []
    handles = {file: os.open(folder / file, os.O_RDONLY) for file in {record.file for record in records}}
    total = sum(record.bytes for record in records)
    try:
        with console.progress("checking", total=total, unit="bytes") as ticker, ThreadPoolExecutor(WORKERS) as pool:
            hashes = pool.map(lambda record: hash_of(handles[record.file], record, piece), records)
            for record, found in zip(records, hashes, strict=True):
                ticker.advance(record.bytes)
                if found != record.sha256:
                    bad.append(f"{record.file}: {record.tensor}")
    finally:
        for handle in handles.values():
            os.close(handle)
    if bad:
        raise TrntError(
            f"{folder}: {len(bad)} tensors are not what was written: {'; '.join(bad[:20])}",
            "the disk or the memory is at fault: check them, then convert again",
        )


def refuse_existing(target: Path, *, force: bool, what: str = "folder") -> None:
    """Raise UsageError when something has the target's name and is not to be replaced."""
    if (target.exists() or target.is_symlink()) and not force:
        raise UsageError(f"{target} exists already", f"use --force to replace it, or name another {what}")


def check_room(folder: Path, needed: int) -> None:
    """Raise TrntError when the disk that a folder is on cannot hold so many bytes more, and a little."""
    needed += SPARE
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise TrntError(
            f"{console.human_bytes(needed)} are needed, {console.human_bytes(free)} are free at {folder}",
            "free some disk space, or name a folder on another disk",
        )


def sync_folder(folder: Path) -> None:
    """Force a folder's files and the folder itself to disk."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def take_name(partial: Path, target: Path) -> None:
    """The finished folder takes its name; one that was there is kept until then."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists() or target.is_symlink():
        os.replace(target, old)
    os.replace(partial, target)
    handle = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    if old.is_symlink() or old.is_file():
        old.unlink()
    else:
        shutil.rmtree(old, ignore_errors=True)
