"""What a conversion will write, to the byte, before anything is read: tensors, parts, files and offsets.

A target is a tensor of the destination and the stretches of source tensors that fill it, in order. Laid out, targets
become items: a stretch of a file with the bytes before and after its data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trnt.checkpoint import mapping
from trnt.checkpoint.dcp import METADATA, DcpSource
from trnt.checkpoint.dtypes import cast_to, size_of, torch_dtype
from trnt.checkpoint.hf import INDEX, SINGLE
from trnt.checkpoint.items import frame
from trnt.checkpoint.safe import plan_file
from trnt.checkpoint.source import Source
from trnt.models.registry import ModelEntry

SHARD_BYTES = 5 * 10**9
CHUNK_BYTES = 128 << 20  # the most of a DCP item: whoever loads a part of a tensor reads whole items


@dataclass(frozen=True)
class Part:
    """A stretch of a source tensor; `tensor` None means zeros."""

    tensor: str | None
    first: int
    count: int


@dataclass(frozen=True)
class Target:
    """A tensor of the destination."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * size_of(self.dtype)

    def rows(self, first: int, count: int) -> Target:
        """Some rows of it."""
        row = math.prod(self.shape[1:])
        return Target(self.name, self.dtype, (count, *self.shape[1:]), _stretch(self.parts, first * row, count * row))


def _stretch(parts: tuple[Part, ...], first: int, count: int) -> tuple[Part, ...]:
    found, at = [], 0
    for part in parts:
        low, high = max(first, at), min(first + count, at + part.count)
        if low < high:
            found.append(Part(part.tensor, part.first + low - at, high - low))
        at += part.count
    return tuple(found)


@dataclass(frozen=True)
class Item:
    """What one stretch of a file holds."""

    target: Target
    first: int
    """The target's first row in the destination's tensor."""
    file: str
    offset: int
    """Where `before` begins; the data follows it."""
    before: bytes = b""
    after: bytes = b""

    @property
    def data_offset(self) -> int:
        return self.offset + len(self.before)


@dataclass(frozen=True)
class Layout:
    """All that will be written, but for configs and tokenizer."""

    kind: str
    items: tuple[Item, ...]
    literals: tuple[tuple[str, bytes], ...]
    """Headers: the bytes at the beginning of a file."""
    files: Mapping[str, int]
    """File -> its bytes."""
    finish: Any = field(compare=False, default=None)
    """Called with the folder when all items are written: index or metadata."""
    blobs: tuple[tuple[str, int, Any], ...] = ()
    """(file, offset, source item) copied byte for byte: what is in a DCP folder and no tensor."""

    @property
    def data_bytes(self) -> int:
        return sum(item.target.nbytes for item in self.items)


def targets(source: Source, entry: ModelEntry, kind: str, dtype: str | None) -> list[Target]:
    """The tensors of `entry` in a folder of `kind`, filled from `source`, whose model may have more layers and experts.

    dtype: code of what floating-point weights are written in, None for what each is in.
    """
    where = mapping.places(entry, source.kind, source.tensors)
    found: dict[str, Target] = {}
    for link, (tensor, first) in where.items():
        if kind == "hf" and not link.on_hub:
            continue
        name = link.hf if kind == "hf" else link.native
        code = link.dtype or cast_to(source.tensors[tensor].dtype, dtype)
        part = Part(tensor, first, link.numel)
        shape = link.shape if kind == "hf" else link.native_shape
        if kind == "hf" or link.expert is None:
            found[name] = Target(name, code, shape, (part,))
        elif name not in found:
            found[name] = Target(name, code, (entry.size.num_experts, *shape), (part,))
        else:
            held = found[name]
            found[name] = Target(name, held.dtype, held.shape, (*held.parts, part))
    if kind == "dcp":
        for name in mapping.dropped_names(entry):
            experts = entry.size.num_experts
            part = Part(name if name in source.tensors else None, 0, experts)
            found[name] = Target(name, "F32", (experts,), (part,))
    return list(found.values())


def as_stored(wanted: Iterable[Target], packed: Any) -> list[Target]:
    """The same tensors, quantised ones as they lie in the files that `packed` (`checkpoint/dequantised.py`) reads.

    A stack of which fewer experts are wanted is cut along its first dimension, scales alike.
    """
    found = []
    for target in wanted:
        (part,) = target.parts
        names = packed.stored(part.tensor)
        if not names:
            found.append(target)
        for name in names:
            info = packed.source.tensors[name]
            whole = target.shape[0] == packed.tensors[part.tensor].shape[0]
            shape = info.shape if whole else (target.shape[0], *info.shape[1:])
            found.append(Target(name, info.dtype, shape, (Part(name, 0, math.prod(shape)),)))
    return found


def others(source: DcpSource) -> list[Target]:
    """The tensors of a DCP folder that are not the model's: optimizer states and the like, as they are."""
    model = set(source.model_names())
    return [
        Target(name, info.dtype, info.shape, (Part(name, 0, info.numel),))
        for name, info in source.tensors.items()
        if name not in model
    ]


def plan_shards(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Names in order, split where a file would pass `limit` bytes; a larger tensor has a file of its own."""
    shards: list[list[str]] = []
    held = 0
    for name, size in sizes.items():
        if not shards or (held and held + size > limit):
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += size
    return shards


def hf_layout(wanted: Iterable[Target], limit: int) -> Layout:
    """Safetensors files of at most `limit` bytes of tensors, and their index when there is more than one."""
    by_name = {target.name: target for target in wanted}
    sizes = {name: target.nbytes for name, target in by_name.items()}
    shards = plan_shards(sizes, limit)
    items: list[Item] = []
    literals: list[tuple[str, bytes]] = []
    files: dict[str, int] = {}
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        front, offsets, size = plan_file({name: (by_name[name].dtype, by_name[name].shape) for name in names})
        literals.append((file, front))
        files[file] = size
        items += [Item(by_name[name], 0, file, at) for name, at in offsets.items()]
        weight_map |= dict.fromkeys(names, file)

    def finish(folder: Path) -> None:
        if len(shards) > 1:
            index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(weight_map.items()))}
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    return Layout("hf", tuple(items), tuple(literals), files, finish)


def chunks(target: Target, most: int) -> Iterator[tuple[int, Target]]:
    """(first row, rows) of a tensor in boxes of at most `most` bytes along dimension 0; at least one row each."""
    if target.nbytes <= most or not target.shape or target.shape[0] < 2:
        yield 0, target
        return
    rows = max(1, most // (target.nbytes // target.shape[0]))
    for first in range(0, target.shape[0], rows):
        yield first, target.rows(first, min(rows, target.shape[0] - first))


def dcp_layout(wanted: Iterable[Target], limit: int, *, blobs: Mapping[str, Any] | None = None) -> Layout:
    """DCP files of about `limit` bytes. Large tensors are cut in chunks, so that any world size reads what it needs.

    blobs: name -> item of a DCP folder that is carried over as it is.
    """
    found = list(wanted)
    items: list[Item] = []
    copied: list[tuple[str, int, Any]] = []
    where: dict[str, tuple[str, int, int]] = {}
    files: dict[str, int] = {}
    number = 0

    def room(length: int) -> tuple[str, int]:
        nonlocal number
        held = files.get(f"__0_{number}.distcp", 0)
        if held and held + length > limit:
            number, held = number + 1, 0
        file = f"__0_{number}.distcp"
        files[file] = held + length
        return file, held

    for name, blob in (blobs or {}).items():
        file, offset = room(blob.length)
        copied.append((file, offset, blob))
        where[name] = (file, offset, blob.length)
    for target in found:
        for first, rows in chunks(target, CHUNK_BYTES):
            around = frame(rows.dtype, rows.shape)
            file, offset = room(around.length)
            items.append(Item(rows, first, file, offset, around.before, around.after))

    def finish(folder: Path) -> None:
        write_metadata(folder / METADATA, found, items, where)

    return Layout("dcp", tuple(items), (), files, finish, tuple(copied))


def write_metadata(path: Path, wanted: list[Target], items: list[Item], blobs: dict[str, tuple[str, int, int]]) -> None:
    """The `.metadata` of a DCP folder, as `torch.distributed.checkpoint` pickles it."""
    import pickle

    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    boxes: dict[str, list[Any]] = {}
    stored: dict[Any, Any] = {}
    for name, (file, offset, length) in blobs.items():
        stored[MetadataIndex(name)] = _StorageInfo(file, offset, length)
    for item in items:
        name, shape = item.target.name, item.target.shape
        begin = torch.Size([item.first, *[0] * (len(shape) - 1)] if shape else [])
        length = len(item.before) + item.target.nbytes + len(item.after)
        stored[MetadataIndex(name, begin, len(boxes.setdefault(name, [])))] = _StorageInfo(
            item.file, item.offset, length
        )
        boxes[name].append(ChunkStorageMetadata(begin, torch.Size(shape)))
    entries: dict[str, Any] = {name: BytesStorageMetadata() for name in blobs}
    for target in wanted:
        properties = TensorProperties(dtype=torch_dtype(target.dtype))
        entries[target.name] = TensorStorageMetadata(properties, torch.Size(target.shape), boxes[target.name])
    metadata = Metadata(entries, {name: (name,) for name in entries}, stored)
    path.write_bytes(pickle.dumps(metadata))
