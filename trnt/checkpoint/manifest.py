"""The record of a conversion: one JSON line per tensor or part that is written, with its checksums.

It lies in the folder that is being written, so that a conversion that was killed goes on where it stopped, and stays in
the finished folder, so that `trnt verify` can tell later whether a byte has changed. The first line says what is being
converted to what; a record of anything else is not taken up.
"""

from __future__ import annotations

import fcntl
import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trnt.errors import TrntError

NAME = "trnt-manifest.jsonl"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Record:
    """One tensor, or one part of it, that is on the disk."""

    tensor: str
    first: int
    """The first row of the part; 0 for a whole tensor."""
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    """Where its data begins in the file."""
    bytes: int
    sha256: str
    """Of the written data."""
    source_sha256: str
    """Of the values as they were read, before any cast."""
    not_finite: int
    """NaN and infinite values."""

    @property
    def key(self) -> tuple[str, int]:
        return self.tensor, self.first


def parse(line: str) -> Record | None:
    """A line's record; None for a line that was cut off."""
    try:
        found = json.loads(line)
        return Record(**{**found, "shape": tuple(found["shape"])})
    except (ValueError, TypeError, KeyError):
        return None


def read(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """(first line, records). Raises TrntError when the file is no manifest."""
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        head = dict(json.loads(first))
    except (OSError, ValueError) as error:
        raise TrntError(f"cannot read {path}: {error}", "remove the file to go without checksums") from None
    return head, [record for line in lines if (record := parse(line)) is not None]


class Manifest:
    """A manifest being written; appended by many threads, locked against a second process."""

    def __init__(self, folder: Path, head: dict[str, Any]) -> None:
        self.path = folder / NAME
        self.head = {"schema_version": SCHEMA_VERSION, **head}
        self.records: dict[tuple[str, int], Record] = {}
        self._lock = threading.Lock()
        self._file = self.path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise TrntError(f"another conversion is writing {folder}", "wait for it, or name another folder") from None
        self._file.seek(0)
        lines = self._file.read().splitlines()
        try:
            before = json.loads(lines[0]) if lines else None
        except ValueError:
            before = None
        self.resumable = before == self.head
        if self.resumable:
            found = [record for line in lines[1:] if (record := parse(line)) is not None]
            self.records = {record.key: record for record in found}
        self.start(list(self.records.values()))

    def start(self, records: list[Record]) -> None:
        """Begin the file anew with the first line and these records."""
        with self._lock:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(json.dumps(self.head) + "\n")
            self._file.writelines(json.dumps(asdict(record)) + "\n" for record in records)
            self._file.flush()
            self.records = {record.key: record for record in records}

    def add(self, record: Record) -> None:
        """One more is written."""
        with self._lock:
            self.records[record.key] = record
            self._file.write(json.dumps(asdict(record)) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Let go of the folder. Syncing is the folder's."""
        self._file.close()
