"""`trnt convert` from what a user typed to the report: what SRC is, what will be written where, the writing."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnt import __version__, console, host_memory
from trnt.checkpoint import assets, convert, layout, verify
from trnt.checkpoint.dcp import DcpSource
from trnt.checkpoint.dequantised import quantised
from trnt.checkpoint.dtypes import CODES, DTYPES
from trnt.checkpoint.inspect import check_one_dtype, dropped_bias, warn_not_finite
from trnt.checkpoint.reordered import ordered
from trnt.checkpoint.source import Source
from trnt.checkpoint.written import refuse_existing
from trnt.errors import UsageError
from trnt.opening import Opened, open_checkpoint, open_files


@dataclass(frozen=True)
class Wanted:
    """The options of `trnt convert`, checked."""

    to: str | None = None
    dtype: str | None = None
    layers: int | None = None
    experts: int | None = None
    shard_bytes: int = layout.SHARD_BYTES
    memory: int = convert.MEMORY
    verify: str = "fast"
    force: bool = False
    config: str | None = None
    revision: str | None = None
    model_only: bool = False
    """From DCP to DCP: leave optimizer and training state out."""
    dequantize: bool = True
    """Write quantised weights as numbers; else as they are, which only a Hugging Face folder can hold."""


@dataclass(frozen=True)
class Planned:
    """A conversion that was checked and not yet begun."""

    opened: Opened
    target: Path
    layout: layout.Layout
    head: dict[str, Any]
    config: dict[str, Any]
    left_out: tuple[str, ...]
    source: Source
    """What is read to write it: the opened source, or the files as they are."""

    @property
    def bytes(self) -> int:
        return sum(self.layout.files.values())


def plan(given: str | Opened, destination: str, wanted: Wanted) -> Planned:
    """Open, check and lay out. Nothing is written. Raises UsageError or TrntError."""
    target = Path(destination).expanduser()
    opened = (
        given if isinstance(given, Opened) else open_checkpoint(given, revision=wanted.revision, config=wanted.config)
    )
    refuse_overlap(opened.source.path, target)
    refuse_existing(target, force=wanted.force)
    whole = opened.entry
    opened = opened.cut(wanted.layers, wanted.experts)
    to = wanted.to or ("dcp" if opened.source.kind == "hf" else "hf")
    code = CODES[wanted.dtype] if wanted.dtype else None
    if code is None:
        check_one_dtype(opened.source, opened.entry)
    chosen = layout.targets(opened.source, opened.entry, to, code)
    left_out = list(opened.notes)
    blobs: dict[str, Any] = {}
    if isinstance(opened.source, DcpSource):
        extra = layout.others(opened.source)
        if to == "dcp" and opened.entry.size == whole.size and not wanted.model_only:
            chosen += extra
            blobs = opened.source.blobs()
        elif extra:
            left_out.append(f"{len(extra)} tensors of optimizer and training state are left out")
    if to == "hf" and (bias := dropped_bias(opened.source, opened.entry)):
        left_out.append(
            f"the expert balance bias (up to {max(bias.values()):.4g}) has no place in a Hugging Face folder"
        )
    source: Source = opened.source
    kept: dict[str, Any] = {}
    packed = None if wanted.dequantize else quantised(opened.source)
    if packed is not None:
        refuse_packed(to, wanted)
        chosen, source = layout.as_stored(chosen, packed), packed.source
        assert opened.config_file is not None  # quantised is what a config.json says it is
        kept = {"quantization_config": assets.read_config(opened.config_file)["quantization_config"]}
        left_out = [note for note in left_out if note != packed.note]
    made = (
        layout.hf_layout(chosen, wanted.shard_bytes)
        if to == "hf"
        else layout.dcp_layout(chosen, wanted.shard_bytes, blobs=blobs)
    )
    largest = max(chosen, key=lambda target: target.nbytes).dtype
    made_here = opened.config_file is None  # from a model's name: its dtype is whatever the run's is
    config = assets.edited(opened.config, opened.entry, wanted.dtype or (DTYPES[largest][0] if made_here else None))
    config |= kept
    return Planned(opened, target, made, head_of(opened, to, config, wanted), config, tuple(left_out), source)


def refuse_packed(to: str, wanted: Wanted) -> None:
    """Raise UsageError for what quantised weights cannot be written as."""
    if to != "hf":
        raise UsageError("--no-dequantize: a DCP folder is for training, which computes in numbers", "leave it out")
    if wanted.dtype is not None:
        raise UsageError("--dtype changes numbers, and --no-dequantize keeps them packed", "leave one of them out")


def refuse_overlap(source: Path, target: Path) -> None:
    """Raise UsageError when the destination is the source, inside it or above it."""
    here, there = source.resolve(), target.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise UsageError(f"{target} is, holds or lies inside the source {source}", "name a folder beside it")


def head_of(opened: Opened, to: str, config: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """What makes two conversions the same one: the source's files as they are now, and every choice."""
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in opened.source.files()]
    choices = {"to": to, "dtype": wanted.dtype, "shard_bytes": wanted.shard_bytes, "config": config}
    text = json.dumps([__version__, str(opened.source.path.resolve()), files, choices], sort_keys=True)
    return {
        "trnt": __version__,
        "source": opened.source.path.resolve().name,
        "to": to,
        "fingerprint": hashlib.sha256(text.encode()).hexdigest(),
    }


def run(planned: Planned, wanted: Wanted, *, title: str = "converting", **more: Any) -> dict[str, Any]:
    """Write it. Returns the report. `more`: `refuse_not_finite`, and `check` of the finished folder before its name."""
    opened, kind = planned.opened, planned.layout.kind
    start = time.perf_counter()
    options = convert.Options(
        memory=wanted.memory,
        refuse_not_finite=more.get("refuse_not_finite", False),
        verify=wanted.verify,
        title=title,
    )

    def write_assets(folder: Path) -> None:
        place = folder if kind == "hf" else folder / assets.IN_DCP
        place.mkdir(exist_ok=True)
        assets.copy_assets(opened.assets, place)
        assets.write_config(planned.config, opened.config_file, place)
        if "assets" in more:
            more["assets"](place)

    def check(folder: Path) -> None:
        if wanted.verify == "full":
            compare_full(opened, folder)
        if "check" in more:
            more["check"](folder)

    try:
        source = ordered(planned.source, opened.entry, kind)
        records = convert.write_folder(
            source, planned.layout, planned.target, planned.head, options, assets=write_assets, check=check
        )
    finally:
        opened.source.close()
    seconds = time.perf_counter() - start
    bad = {record.tensor: record.not_finite for record in records if record.not_finite}
    warn_not_finite(bad)
    return {
        **describe(planned),
        "not_finite": bad,
        "verified": wanted.verify,
        "seconds": seconds,
        "bytes_per_s": planned.layout.data_bytes / seconds,
        "memory_peak_bytes": host_memory.peak_bytes(),
    }


def compare_full(opened: Opened, folder: Path) -> None:
    """Read the finished folder back as a user would, and compare every value with the source's."""
    written = open_files(str(folder))
    if quantised(opened.source) is not None and written.kind == "hf":
        written = open_checkpoint(str(folder)).source
    with written:
        rows = verify.compare_models(written, opened.source, opened.entry, title="verifying")
    verify.must_be_same(rows, folder)


def dtypes_of(planned: Planned) -> list[str]:
    """torch's names of the dtypes written, the most bytes first."""
    sizes: dict[str, int] = {}
    for item in planned.layout.items:
        sizes[item.target.dtype] = sizes.get(item.target.dtype, 0) + item.target.nbytes
    return [DTYPES[code][0] for code, _ in sorted(sizes.items(), key=lambda pair: -pair[1])]


def describe(planned: Planned) -> dict[str, Any]:
    """What is written from what, as the report and the dry run say it."""
    opened, made = planned.opened, planned.layout
    return {
        "source": str(opened.source.path),
        "destination": str(planned.target),
        "from": opened.source.kind,
        "to": made.kind,
        "model": opened.entry.name,
        "layers": opened.entry.size.num_layers,
        "experts": opened.entry.size.num_experts,
        "tensors": len({item.target.name for item in made.items}),
        "bytes": made.data_bytes,
        "dtypes": dtypes_of(planned),
        "files": len(made.files),
        "left_out": list(planned.left_out),
    }


def dry_run(planned: Planned, wanted: Wanted) -> dict[str, Any]:
    """What would be written and what it takes, without writing."""
    parent = next(path for path in (planned.target.absolute(), *planned.target.absolute().parents) if path.exists())
    free = shutil.disk_usage(parent).free
    rate = bytes_per_second()
    return {
        **describe(planned),
        "disk_needed_bytes": planned.bytes,
        "disk_free_bytes": free,
        "memory_bytes": wanted.memory,
        "seconds_estimated": planned.layout.data_bytes / rate,
    }


def bytes_per_second() -> float:
    """About what a conversion does here: the rate of SHA-256 on all workers, halved for reading and writing."""
    data = bytes(16 << 20)
    start = time.perf_counter()
    hashlib.sha256(data).digest()
    return len(data) / (time.perf_counter() - start) * convert.WORKERS / 2


def render(report: dict[str, Any]) -> str:
    """A report for people."""
    experts = f", {report['experts']} experts" if report["experts"] else ""
    first = (
        f"{report['source']} ({report['from']}) -> {report['destination']} ({report['to']}): {report['model']}, "
        f"{report['layers']} layers{experts}"
    )
    second = (
        f"{report['tensors']} tensors, {console.human_bytes(report['bytes'])}, {', '.join(report['dtypes'])}, "
        f"{report['files']} files"
    )
    lines = [first, second, *(f"note: {text}" for text in report["left_out"])]
    if "seconds" in report:
        lines.append(
            f"{console.human_time(report['seconds'])} ({console.human_bytes(report['bytes_per_s'])}/s), verified: "
            f"{report['verified']}, memory {console.human_bytes(report['memory_peak_bytes'])}"
        )
    else:
        enough = "" if report["disk_free_bytes"] > report["disk_needed_bytes"] else ": NOT ENOUGH"
        lines.append(
            f"disk: {console.human_bytes(report['disk_needed_bytes'])} needed, "
            f"{console.human_bytes(report['disk_free_bytes'])} free{enough}; buffers up to "
            f"{console.human_bytes(report['memory_bytes'])}; about {console.human_time(report['seconds_estimated'])}"
        )
        lines.append("nothing was written (--dry-run)")
    return "\n".join(lines)
