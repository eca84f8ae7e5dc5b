"""From what a user names (FILE, FOLDER or GLOB) to documents, one string each."""

from __future__ import annotations

import glob
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from trnt.errors import UsageError, nearest

SAMPLE = Path(__file__).parent / "sample"
SAMPLE_TEXT = SAMPLE / "text"
SAMPLE_TOKENIZER = SAMPLE / "tokenizer"

TEXT = (".txt", ".text", ".md", ".txt.gz")
LINES = (".jsonl", ".jsonl.gz")
SEPARATOR = "<|endoftext|>"


def supported(path: Path) -> bool:
    """Whether the name ends in a format that can be read."""
    return path.name.lower().endswith(TEXT + LINES)


def find_files(data: str) -> list[Path]:
    """The files meant by FILE, FOLDER (searched through, hidden ones left out) or GLOB, sorted by path.

    Raises UsageError when nothing is there, or nothing in a format that can be read.
    """
    path = Path(data)
    if path.is_file():
        if not supported(path):
            raise UsageError(
                f"{path} is in no format that can be read", f"use a file that ends in {' '.join(TEXT + LINES)}"
            )
        return [path]
    if path.is_dir():
        inside = [p for p in path.rglob("*") if p.is_file() and not hidden(p.relative_to(path))]
        found = sorted(p for p in inside if supported(p))
        if not found:
            raise UsageError(f"no text in the folder {path}", f"put files there that end in {' '.join(TEXT + LINES)}")
        return found
    if glob.has_magic(data):
        found = sorted(p for p in map(Path, glob.glob(data, recursive=True)) if p.is_file() and supported(p))
        if not found:
            raise UsageError(
                f"no file matches --data '{data}'", "check the pattern; quote it so that the shell leaves it alone"
            )
        return found
    near = nearest(path.name, [p.name for p in path.parent.iterdir()]) if path.parent.is_dir() else None
    fix = f"did you mean {path.parent / near}?" if near else "give a FILE, FOLDER or GLOB that exists"
    raise UsageError(f"no such file or folder: {data}", fix)


def hidden(path: Path) -> bool:
    """Whether any part of a relative path begins with a dot."""
    return any(part.startswith(".") for part in path.parts)


def open_text(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked when gzipped. Raises UsageError when it cannot be opened."""
    try:
        return gzip.open(path) if path.name.endswith(".gz") else path.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "make the file readable") from None


def decode(raw: bytes, path: Path) -> str:
    """UTF-8 text, a byte order mark dropped. Raises UsageError with the byte that is not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 text (byte {error.start})", "convert it, for example with iconv -t UTF-8"
        ) from None


def documents(files: Iterable[Path], text_field: str = "text") -> Iterator[str]:
    """Every document, empty ones too.

    A text file is one document, or several where a line is exactly `<|endoftext|>`; a jsonl line is one document.
    Raises UsageError naming the file (and the line) that cannot be read.
    """
    for path in files:
        reader = read_lines(path, text_field) if path.name.lower().endswith(LINES) else read_text(path)
        try:
            yield from reader
        except (OSError, EOFError) as error:
            raise UsageError(f"cannot read {path}: {error}", "the file may be cut off; fetch it again") from None


def read_text(path: Path) -> Iterator[str]:
    """The documents of a plain text file."""
    with open_text(path) as file:
        text = decode(file.read(), path)
    parts: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.strip() == SEPARATOR:
            yield "".join(parts).strip("\n")
            parts = []
        else:
            parts.append(line)
    yield "".join(parts)


def read_lines(path: Path, text_field: str) -> Iterator[str]:
    """The documents of a jsonl file; blank lines are passed over."""
    with open_text(path) as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            try:
                value = json.loads(decode(raw, path))
            except json.JSONDecodeError as error:
                raise UsageError(
                    f"{path} line {number} is not JSON: {error.msg}", "every line must be one JSON object"
                ) from None
            if not isinstance(value, dict) or text_field not in value:
                fields = ", ".join(value) if isinstance(value, dict) else "none: it is not an object"
                raise UsageError(
                    f"{path} line {number} has no field '{text_field}'",
                    f"choose one with --text-field; there are: {fields}",
                )
            text = value[text_field]
            if not isinstance(text, str):
                raise UsageError(
                    f"{path} line {number}: '{text_field}' is not text", "choose a field of text with --text-field"
                )
            yield text
