"""The safetensors format as bytes: headers read with every rule checked, and headers planned before any data exists.

Format: https://github.com/huggingface/safetensors, "Format": u64 little-endian length of the JSON header, the header,
the data. Files are read with plain reads, not mapped: a mapped file counts as memory of the process.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnt.checkpoint.dtypes import DTYPES, size_of

MAX_HEADER = 100_000_000  # bytes; the library refuses more
ALIGN = 8  # the library pads the header with spaces to this


class BadFile(Exception):
    """A file that breaks a rule of the format; the text says which, without the file's name."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: dtype code, shape, and where its bytes begin."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * size_of(self.dtype)


def read_header(path: Path) -> dict[str, Stored]:
    """Name -> tensor of a file, in the header's order. Raises BadFile for a file that breaks the format, OSError."""
    total = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(first, "little") if len(first := file.read(8)) == 8 else -1
        if length < 0:
            raise BadFile(f"it has {total} bytes, no safetensors file")
        if length > min(MAX_HEADER, total - 8):
            raise BadFile(f"its header claims {length} bytes and the file has {total}")
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_no_duplicates)
        assert isinstance(header, dict)
    except (ValueError, AssertionError) as error:
        raise BadFile(f"its header is not right: {error or 'no JSON object'}") from None
    header.pop("__metadata__", None)
    begin, found = 8 + length, {}
    for name, entry in header.items():
        found[name] = _stored(name, entry, begin)
    _check_cover(found, begin, total)
    return found


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) != len(names) else []
    if twice:
        raise ValueError(f"{twice[0]} stands in it twice")
    return dict(pairs)


def _stored(name: str, entry: Any, begin: int) -> Stored:
    try:
        dtype, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        numbers = (*shape, first, last)
        assert all(isinstance(number, int) and number >= 0 for number in numbers)
    except (KeyError, TypeError, ValueError, AssertionError):
        raise BadFile(f"its entry of {name} is not right") from None
    if dtype not in DTYPES:
        raise BadFile(f"{name} has the dtype {dtype}, which trnt does not read")
    stored = Stored(dtype, shape, begin + first)
    if last - first != stored.nbytes:
        raise BadFile(f"{name} has {last - first} bytes, and {dtype} {list(shape)} needs {stored.nbytes}")
    return stored


def _check_cover(found: dict[str, Stored], begin: int, total: int) -> None:
    """The tensors must cover the data without a gap or an overlap."""
    at = begin
    for name, stored in sorted(found.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if stored.offset != at:
            raise BadFile(f"{name} begins at byte {stored.offset}, not {at}")
        at += stored.nbytes
    if at > total:
        raise BadFile(f"it is cut short: {total} of {at} bytes")
    if at < total:
        raise BadFile(f"{total - at} bytes follow its last tensor")


def plan_file(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, dict[str, int], int]:
    """(header bytes, offset of every tensor in the file, bytes of the file) for name -> (dtype code, shape).

    As the library's own writer: by falling dtype size, then by name; `format: pt` in the metadata.
    """
    order = sorted(tensors, key=lambda name: (-size_of(tensors[name][0]), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at, begins = 0, {}
    for name in order:
        dtype, shape = tensors[name]
        nbytes = math.prod(shape) * size_of(dtype)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        begins[name] = at
        at += nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGN)
    front = len(text).to_bytes(8, "little") + text
    return front, {name: len(front) + begins[name] for name in begins}, len(front) + at


def read_at(handle: int, offset: int, out: memoryview) -> None:
    """Fill `out` from a file. Raises OSError when the file ends before."""
    done = 0
    while done < len(out):
        got = os.preadv(handle, [out[done:]], offset + done)
        if not got:
            raise OSError(f"the file ends at byte {offset + done}")
        done += got
