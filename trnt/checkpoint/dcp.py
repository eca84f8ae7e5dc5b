"""Reading torch DCP folders as a stream, without a process group and without running a pickle."""

from __future__ import annotations

import io
import math
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnt.checkpoint.dtypes import CODES, code_of, size_of
from trnt.checkpoint.items import frame
from trnt.checkpoint.safe import read_at
from trnt.checkpoint.source import Info, Source, cannot_read, refuse
from trnt.checkpoint.unpickle import read_metadata
from trnt.errors import TrntError

METADATA = ".metadata"
# What a model tensor's name starts with; optimizer names hold the same words further in.
MODEL_STARTS = ("tok_embeddings.", "layers.", "mtp_layers.", "norm.", "lm_head.", "hf.")


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, and the item that holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    offset: int
    length: int


class DcpSource(Source):
    """A DCP folder's tensors, the optimizer's too; whatever world size wrote it."""

    kind = "dcp"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if not (path / METADATA).is_file():
            raise TrntError(f"{path} is no checkpoint: it has no {METADATA}", "name a checkpoint/step-N folder")
        metadata = read_metadata(path / METADATA)
        self.metadata = metadata
        self._chunks: dict[str, list[Chunk]] = {}
        self._local = threading.local()
        problems: list[str] = []
        stored = {(i.fqn, tuple(i.offset or ())): info for i, info in (metadata.storage_data or {}).items()}
        for name, entry in metadata.state_dict_metadata.items():
            if hasattr(entry, "size"):
                problems += self._take(name, entry, stored)
        problems += self._check_files()
        refuse(path, problems, "use another checkpoint")

    def _take(self, name: str, entry: Any, stored: dict[Any, Any]) -> list[str]:
        dtype = str(entry.properties.dtype).removeprefix("torch.")
        if dtype not in CODES:
            return [f"{name} has the dtype {dtype}, which trnt does not read"]
        self.tensors[name] = Info(code_of(dtype), tuple(entry.size))
        self._chunks[name] = []
        for box in entry.chunks:
            info = stored.get((name, tuple(box.offsets)))
            if info is None:
                return [f"{name}: its part at {list(box.offsets)} is nowhere"]
            if getattr(info, "transform_descriptors", None):
                return [f"{name} is stored through {info.transform_descriptors}, which trnt does not read"]
            self._chunks[name].append(
                Chunk(tuple(box.offsets), tuple(box.sizes), str(info.relative_path), info.offset, info.length)
            )
        covered = sum(math.prod(chunk.sizes) for chunk in self._chunks[name])
        if covered != self.tensors[name].numel:
            return [f"{name}: its parts hold {covered} of {self.tensors[name].numel} values"]
        return []

    def _check_files(self) -> list[str]:
        needed: dict[str, int] = {}
        for info in (self.metadata.storage_data or {}).values():
            needed[info.relative_path] = max(needed.get(info.relative_path, 0), info.offset + info.length)
        problems = []
        for name, size in needed.items():
            if name != Path(name).name or name in (".", ".."):
                problems.append(f"it names the file {name}, outside the folder")
            elif not (self.path / name).is_file():
                problems.append(f"the file {name} is missing")
            elif (self.path / name).stat().st_size < size:
                problems.append(f"the file {name} has {(self.path / name).stat().st_size} of {size} bytes")
        return problems

    def model_names(self) -> list[str]:
        """The model's tensors."""
        return [name for name in self.tensors if name.startswith(MODEL_STARTS)]

    def blobs(self) -> dict[str, Chunk]:
        """What is no tensor: counters, and bytes that stay closed."""
        tensors = set(self.tensors)
        return {
            index.fqn: Chunk((), (), str(info.relative_path), info.offset, info.length)
            for index, info in (self.metadata.storage_data or {}).items()
            if index.fqn not in tensors
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor, the optimizer's too."""
        return {name: info.shape for name, info in self.tensors.items()}

    def files(self) -> list[Path]:
        return sorted({self.path / chunk.file for chunks in self._chunks.values() for chunk in chunks})

    def read(self, name: str, first: int, out: memoryview) -> None:
        info = self.tensors[name]
        size = size_of(info.dtype)
        count = len(out) // size
        whole = info.shape[1:]
        if all(chunk.sizes[1:] == whole and not any(chunk.offsets[1:]) for chunk in self._chunks[name]):
            row = math.prod(whole)
            for chunk in self._chunks[name]:
                begin = chunk.offsets[0] * row if chunk.offsets else 0
                low, high = max(first, begin), min(first + count, begin + math.prod(chunk.sizes))
                if low < high:
                    self._read_item(info, chunk, low - begin, out[(low - first) * size : (high - first) * size])
            return
        self._read_boxes(name, info, first, out)

    def _read_boxes(self, name: str, info: Info, first: int, out: memoryview) -> None:
        """Chunks cut along inner dimensions: the rows that are touched are put together, whole."""
        import torch

        from trnt.checkpoint.dtypes import torch_dtype

        dtype, row = torch_dtype(info.dtype), math.prod(info.shape[1:])
        count = len(out) // size_of(info.dtype)
        low, high = first // row, -(-(first + count) // row)
        rows = torch.empty((high - low, *info.shape[1:]), dtype=dtype)
        for chunk in self._chunks[name]:
            begin, end = max(low, chunk.offsets[0]), min(high, chunk.offsets[0] + chunk.sizes[0])
            if begin >= end:
                continue
            part = torch.empty((end - begin, *chunk.sizes[1:]), dtype=dtype)
            inner = math.prod(chunk.sizes[1:])
            flat = memoryview(part.view(-1).view(torch.uint8).numpy())
            self._read_item(info, chunk, (begin - chunk.offsets[0]) * inner, flat)
            where = tuple(slice(o, o + s) for o, s in zip(chunk.offsets[1:], chunk.sizes[1:], strict=True))
            rows[(slice(begin - low, end - low), *where)] = part
        found = rows.view(-1)[first - low * row : first - low * row + count]
        torch.frombuffer(out, dtype=dtype).copy_(found)

    def _read_item(self, info: Info, chunk: Chunk, first: int, out: memoryview) -> None:
        """Values of one item from `first` on: straight from the file where torch framed it as usual."""
        if not len(out):
            return
        file, usual = self.path / chunk.file, frame(info.dtype, chunk.sizes)
        try:
            handle = self.handle(file)
            front = bytearray(len(usual.before))
            if chunk.length >= len(front):
                read_at(handle, chunk.offset, memoryview(front))
            if usual.holds(bytes(front), chunk.length):
                read_at(handle, chunk.offset + len(front) + first * size_of(info.dtype), out)
                return
            self._read_loaded(handle, file, info, chunk, first, out)
        except OSError as error:
            raise cannot_read(file, error) from error

    def _read_loaded(self, handle: int, file: Path, info: Info, chunk: Chunk, first: int, out: memoryview) -> None:
        """The same of an item in any other frame: loaded whole, and kept for the next stretch."""
        import torch

        if getattr(self._local, "chunk", None) != chunk:
            whole = bytearray(chunk.length)
            read_at(handle, chunk.offset, memoryview(whole))
            try:
                tensor = torch.load(io.BytesIO(whole), map_location="cpu", weights_only=True)
            except Exception as error:
                said = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise TrntError(f"{file} at byte {chunk.offset}: {said}", "use another checkpoint") from None
            if tuple(tensor.shape) != chunk.sizes or code_of(tensor.dtype) != info.dtype:
                raise TrntError(
                    f"{file} at byte {chunk.offset} holds {list(tensor.shape)} {tensor.dtype}, "
                    f"not {list(chunk.sizes)} {info.dtype}",
                    "use another checkpoint",
                )
            self._local.chunk, self._local.tensor = chunk, tensor.contiguous().view(-1)
        count = len(out) // size_of(info.dtype)
        torch.frombuffer(out, dtype=self._local.tensor.dtype).copy_(self._local.tensor[first : first + count])


def open_dcp(path: str | Path) -> DcpSource:
    """Open a DCP folder. Raises TrntError when it is none, or with everything that is wrong with it."""
    return DcpSource(Path(path))


def complete(path: Path) -> str | None:
    """None when the metadata and every file it names are there with all their bytes, else what is missing."""
    if not (path / METADATA).is_file():
        return f"it has no {METADATA}"
    try:
        open_dcp(path)
    except TrntError as error:
        return error.cause.removeprefix(f"{path}: ")
    return None
