"""The streaming engine: any source to any layout, a few megabytes at a time, resumable to the byte.

Every item's place is known before the first is written, so that items are independent: a pool of workers reads,
casts, hashes and writes them in any order, and what is done is done. The folder is built as `.NAME.partial` beside its
final name, which it takes when it is complete, checked and on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trnt import console, host_memory
from trnt.checkpoint import manifest
from trnt.checkpoint.dtypes import FLOATS, size_of, torch_dtype
from trnt.checkpoint.layout import Item, Layout, Part
from trnt.checkpoint.manifest import Manifest, Record
from trnt.checkpoint.safe import read_at
from trnt.checkpoint.source import PIECE, Source, pieces
from trnt.checkpoint.written import WORKERS, check_room, check_written, hash_of, sync_folder, take_name, write_at
from trnt.errors import TrntError

MEMORY = 512 << 20  # default budget for buffers, in bytes
FLUSH_EVERY = 256 << 20  # bytes written before the disk is asked to take them, so that the end does not wait for all


@dataclass(frozen=True)
class Options:
    """How to write, not what."""

    memory: int = MEMORY
    refuse_not_finite: bool = False
    verify: str = "fast"
    title: str = "converting"


@dataclass
class Work:
    """One conversion going on."""

    source: Source
    layout: Layout
    folder: Path
    manifest: Manifest
    options: Options
    ticker: Any
    handles: dict[str, int] = field(default_factory=dict)
    written: int = 0
    began: float = field(default_factory=time.perf_counter)
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def piece(self) -> int:
        """Bytes of a buffer: two for each worker must fit the budget."""
        return max(64 << 10, min(PIECE, self.options.memory // (2 * WORKERS)))

    def count(self, amount: int) -> None:
        with self.lock:
            self.written += amount
            self.ticker.advance(amount, self.ticker_detail())

    def ticker_detail(self) -> str:
        """How much, how fast, how long still, and in how much memory."""
        rate = self.written / max(1e-9, time.perf_counter() - self.began)
        left = (self.layout.data_bytes - self.written) / max(1.0, rate)
        return (
            f"{console.human_bytes(self.written)}, {console.human_bytes(rate)}/s, ETA {console.human_time(left)}, "
            f"memory {console.human_bytes(host_memory.used_bytes())}"
        )


def write_folder(
    source: Source,
    layout: Layout,
    target: Path,
    head: dict[str, Any],
    options: Options,
    *,
    assets: Callable[[Path], None],
    check: Callable[[Path], None] = lambda folder: None,
) -> list[Record]:
    """Write `layout` from `source` as the folder `target`. Returns the records of everything written.

    head: who is converted to what; a partial folder with the same is gone on with. assets: writes configs and
    tokenizer. check: raises when the finished folder, not yet under its name, is not right.
    Raises TrntError when the disk is full or refuses; what is done is kept for the next try. Raises it too, and keeps
    nothing, when a weight is not finite and that was refused.
    """
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir(exist_ok=True)
        if any(partial.iterdir()) and not (partial / manifest.NAME).is_file():
            raise TrntError(f"{partial} holds files that are not a conversion's", "move them, or name another folder")
        record = Manifest(partial, head)
    except OSError as error:
        raise TrntError(f"cannot write beside {target}: {error.strerror}", "name another folder") from None
    try:
        _clear(partial, keep=record.resumable)
        _room(partial, layout, record)
        total = layout.data_bytes
        with console.progress(options.title, total=total, unit="bytes") as ticker:
            work = Work(source, layout, partial, record, options, ticker)
            try:
                _run(work)
            finally:
                for handle in work.handles.values():
                    os.close(handle)
        layout.finish(partial)
        assets(partial)
        order = [record.records[item.target.name, item.first] for item in layout.items]
        with ThreadPoolExecutor(1) as disk:  # writes the last of it while it is read back
            synced = disk.submit(sync_folder, partial)
            if options.verify != "off":
                check_written(partial, order, work.piece)
            synced.result()
        record.start(order)
        check(partial)
        sync_folder(partial)
        take_name(partial, target)
        return order
    except OSError as error:
        raise _disk(error, target, record, layout) from error
    except NotFinite:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    except KeyboardInterrupt:
        console.note(f"{len(record.records)} of {len(layout.items)} parts are done and kept; the same command goes on")
        raise
    finally:
        record.close()


class NotFinite(TrntError):
    """A weight is NaN or infinite, and that was refused."""


def _clear(partial: Path, *, keep: bool) -> None:
    """Empty a partial folder that belongs to another conversion."""
    if keep:
        return
    for path in partial.iterdir():
        if path.name == manifest.NAME:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _room(partial: Path, layout: Layout, record: Manifest) -> None:
    """Raise TrntError when the disk cannot hold what is still to be written."""
    done = sum(one.bytes for one in record.records.values())
    try:
        check_room(partial.parent, sum(layout.files.values()) - done)
    except TrntError:
        if not record.records:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _run(work: Work) -> None:
    """Write every item that is not there yet."""
    for file in work.layout.files:
        work.handles[file] = os.open(work.folder / file, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(work.handles[file], work.layout.files[file])
    for file, front in work.layout.literals:
        write_at(work.handles[file], 0, front)
    for file, offset, blob in work.layout.blobs:
        data = bytearray(blob.length)
        read_at(work.source.handle(work.source.path / blob.file), blob.offset, memoryview(data))
        write_at(work.handles[file], offset, data)
    flusher = threading.Thread(target=_flush, args=(work,), daemon=True)
    flusher.start()
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="trnt-convert")
    try:
        waiting = [pool.submit(_one, work, item) for item in work.layout.items]
        done, _ = wait(waiting, return_when=FIRST_EXCEPTION)
        for one in done:
            one.result()
    finally:
        work.stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        flusher.join()


def _flush(work: Work) -> None:
    """Have the disk take what was written, while more is being written."""
    seen = 0
    while not work.stop.wait(0.05):
        if work.written - seen >= FLUSH_EVERY:
            seen = work.written
            for handle in list(work.handles.values()):
                with contextlib.suppress(OSError):  # what cannot be written fails where it is written
                    os.fdatasync(handle)


def _one(work: Work, item: Item) -> None:
    """Write one item, unless it is there already with the bytes that were recorded."""
    import torch

    torch.set_num_threads(1)
    if work.stop.is_set():
        return
    known = work.manifest.records.get((item.target.name, item.first))
    handle = work.handles[item.file]
    there = known is not None and (known.file, known.offset) == (item.file, item.data_offset)
    if known is not None and there and hash_of(handle, known, work.piece) == known.sha256:
        work.count(item.target.nbytes)
        return
    written, read = hashlib.sha256(), hashlib.sha256()
    at, bad, cast = item.data_offset, 0, False
    write_at(handle, item.offset, item.before)
    for part in item.target.parts:
        for data, raw in _stretches(work, part, item.target.dtype):
            if work.stop.is_set():
                return
            bad += not_finite(data, item.target.dtype)
            written.update(data)
            if raw is not data:
                cast = True
                read.update(raw)
            write_at(handle, at, data)
            at += len(data)
            work.count(len(data))
    if bad and work.options.refuse_not_finite:
        raise NotFinite(f"{item.target.name} holds NaN or infinite values", "export an earlier step of the run")
    write_at(handle, at, item.after)
    work.manifest.add(
        Record(
            tensor=item.target.name,
            first=item.first,
            dtype=item.target.dtype,
            shape=item.target.shape,
            file=item.file,
            offset=item.data_offset,
            bytes=item.target.nbytes,
            sha256=written.hexdigest(),
            source_sha256=(read if cast else written).hexdigest(),
            not_finite=bad,
        )
    )


def _stretches(work: Work, part: Part, dtype: str) -> Iterator[tuple[memoryview, memoryview]]:
    """(bytes to write, bytes as read) of a part, piece by piece; the same object where nothing is cast."""
    import torch

    own = dtype if part.tensor is None else work.source.tensors[part.tensor].dtype
    values = work.piece // max(size_of(own), size_of(dtype))
    buffer = bytearray(min(values, part.count) * size_of(own))
    for first, count in pieces(part.count, values):
        raw = memoryview(buffer)[: count * size_of(own)]
        if part.tensor is not None:
            work.source.read(part.tensor, part.first + first, raw)
        if own == dtype:
            yield raw, raw
        else:
            changed = torch.frombuffer(raw, dtype=torch_dtype(own)).to(torch_dtype(dtype))
            yield memoryview(changed.view(torch.uint8).numpy()), raw


def not_finite(data: memoryview, dtype: str) -> int:
    """How many values are NaN or infinite. A sum tells at once when none is."""
    import torch

    if dtype not in FLOATS or not len(data):
        return 0
    values = torch.frombuffer(data, dtype=torch_dtype(dtype))
    total = values.sum(dtype=torch.float32 if dtype != "F64" else None)
    return 0 if torch.isfinite(total) else int((~torch.isfinite(values)).sum())


def _disk(error: OSError, target: Path, record: Manifest, layout: Layout) -> TrntError:
    """A disk's refusal in words, with how far it got."""
    done = f"{len(record.records)} of {len(layout.items)} parts are done and kept"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return TrntError(
            f"no space left for {target}: {done}",
            "free some disk space and run the same command: it goes on from there",
        )
    return TrntError(f"could not write {target}: {error.strerror or error}; {done}", "run the same command to go on")
