"""Tokenise once, into a cache that any process can map.

A cache folder holds tokens.bin (uint32, little-endian), documents.bin (int64: where each document begins) and
meta.json (its sizes and what it was made from). It appears under its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from trnt import console
from trnt.data import sources
from trnt.data.tokenizer import eos_id, load, tokenizer_folder
from trnt.errors import TrntError, UsageError

FORMAT = 1
BATCH_CHARACTERS = 4_000_000  # of text tokenised at once: bounds the memory, keeps both cores busy
HASH_WHOLE_BYTES = 64 << 20  # larger files are known by size and time of change


@dataclass(frozen=True)
class TokenSet:
    """Tokenised text. `fingerprint` is equal for the same text, field and tokenizer, wherever they lie."""

    path: str
    fingerprint: str
    num_tokens: int
    num_documents: int
    skipped_documents: int
    max_id: int
    eos_id: int
    tokenizer_path: str
    data: str

    def tokens(self) -> np.ndarray:
        """All ids, (num_tokens,) uint32, mapped, each document ended by `eos_id`."""
        return np.memmap(Path(self.path) / "tokens.bin", dtype="<u4", mode="r")

    def starts(self) -> np.ndarray:
        """Where each document begins, (num_documents,) int64, rising from 0."""
        return np.memmap(Path(self.path) / "documents.bin", dtype="<i8", mode="r")


def check_length(tokens: TokenSet, seq_len: int) -> None:
    """Raise UsageError when one row would be longer than all the data."""
    if seq_len > tokens.num_tokens:
        raise UsageError(
            f"a row of {seq_len} tokens is longer than the data ({tokens.num_tokens} tokens)",
            f"use --seq-len {max(1, tokens.num_tokens // 2)} or less, or more data",
        )


def cache_root() -> Path:
    """`$TRNT_CACHE`, else `$XDG_CACHE_HOME/trnt`, else `~/.cache/trnt`."""
    chosen = os.environ.get("TRNT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(chosen) if chosen else Path(base) / "trnt"


def prepare(data: str | None, tokenizer: str | None, text_field: str = "text") -> TokenSet:
    """Find, tokenise and cache the data; a cache that is there and whole is used. None means the bundled sample.

    Raises UsageError or TrntError for data or a tokenizer that cannot be read, and for data without text.
    """
    files = sources.find_files(data) if data else sources.find_files(str(sources.SAMPLE_TEXT))
    folder = tokenizer_folder(tokenizer) if tokenizer else sources.SAMPLE_TOKENIZER
    fingerprint = fingerprint_of(files, folder, text_field)
    target = cache_root() / "tokens" / fingerprint[:16]
    said = {"tokenizer_path": str(folder.resolve()), "data": data or "the bundled novels"}
    found = read_cache(target, fingerprint, said)
    if found is not None:
        return found
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError:
        scratch = Path(tempfile.mkdtemp(prefix="trnt-tokens-"))
        target = scratch / "tokens"
        console.note(f"the cache folder {cache_root()} cannot be written: tokens go to {scratch}")
        scratch = Path(tempfile.mkdtemp(dir=scratch))
    try:
        build(files, folder, text_field, fingerprint, scratch)
        publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    made = read_cache(target, fingerprint, said)
    if made is None:
        raise TrntError(f"the token cache {target} is damaged", f"delete {target} and run again")
    return made


def fingerprint_of(files: list[Path], tokenizer: Path, text_field: str) -> str:
    """SHA-256 over the files' names and contents, the field and tokenizer.json."""
    whole = hashlib.sha256(f"trnt tokens {FORMAT} {text_field}\n".encode())
    whole.update(hashlib.sha256((tokenizer / "tokenizer.json").read_bytes()).digest())
    for path in files:
        try:
            state = path.stat()
            if state.st_size <= HASH_WHOLE_BYTES:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                digest = f"{state.st_size} {state.st_mtime_ns}"
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}", "make the file readable") from None
        whole.update(f"{path.name} {digest}\n".encode())
    return whole.hexdigest()


def read_cache(folder: Path, fingerprint: str, said: dict[str, str]) -> TokenSet | None:
    """The token set in a cache folder; None when there is none, or when its files have other sizes than written."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        tokens, starts = (folder / name for name in ("tokens.bin", "documents.bin"))
        whole = (
            meta["fingerprint"] == fingerprint
            and tokens.stat().st_size == 4 * meta["num_tokens"]
            and starts.stat().st_size == 8 * meta["num_documents"]
        )
        return TokenSet(path=str(folder), **{**meta, **said}) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def build(files: list[Path], folder: Path, text_field: str, fingerprint: str, scratch: Path) -> None:
    """Tokenise into `scratch`, a few megabytes of text at a time."""
    tokenizer = load(folder)
    end = eos_id(folder, tokenizer)
    total, documents, skipped, largest = 0, 0, 0, end
    size = sum(path.stat().st_size for path in files)
    with (
        (scratch / "tokens.bin").open("wb") as tokens,
        (scratch / "documents.bin").open("wb") as starts,
        console.progress("tokenising", total=size, unit="bytes") as ticker,
    ):
        for texts in batches(sources.documents(files, text_field)):
            kept = [text for text in texts if text.strip()]
            skipped += len(texts) - len(kept)
            for encoding in tokenizer.encode_batch_fast(kept, add_special_tokens=False):
                ids = np.asarray([*encoding.ids, end], dtype="<u4")
                largest = max(largest, int(ids.max()))
                starts.write(np.asarray([total], dtype="<i8").tobytes())
                tokens.write(ids.tobytes())
                total += len(ids)
                documents += 1
            ticker.advance(sum(len(text) for text in texts))
        for file in (tokens, starts):
            file.flush()
            os.fsync(file.fileno())
    if not documents:
        raise UsageError("the data holds no text", "give files that are not empty")
    meta = TokenSet("", fingerprint, total, documents, skipped, largest, end, "", "")
    kept_keys = {key: value for key, value in asdict(meta).items() if key != "path"}
    (scratch / "meta.json").write_text(json.dumps(kept_keys))


def batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Documents in groups of about `BATCH_CHARACTERS`."""
    group: list[str] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


def publish(scratch: Path, target: Path) -> None:
    """Rename the finished folder into place; when another process was first, its folder stays unless it is damaged."""
    ready = scratch / "ready"
    ready.mkdir()
    for name in ("tokens.bin", "documents.bin", "meta.json"):
        os.replace(scratch / name, ready / name)
    for _ in range(2):
        try:
            os.replace(ready, target)
            return
        except OSError:
            fingerprint = json.loads((ready / "meta.json").read_text())["fingerprint"]
            if read_cache(target, fingerprint, {}) is not None:
                return
            shutil.rmtree(target, ignore_errors=True)
