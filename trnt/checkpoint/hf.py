"""Writing a Hugging Face folder so that it is there whole, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trnt.errors import TrntError, UsageError

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 5 * 10**9


@contextmanager
def new_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """A folder to fill; it takes its name `target` when the block ends well, and vanishes when it does not.

    Raises UsageError when `target` exists and `force` is not given; with it, the old one is kept until then.
    Raises TrntError when the disk refuses.
    """
    if (target.exists() or target.is_symlink()) and not force:
        raise UsageError(f"{target} exists already", "use --force to replace it, or name another folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        partial.chmod(0o755)
    except OSError as error:
        raise TrntError(f"cannot write beside {target}: {error.strerror}", "name another folder") from None
    try:
        yield partial
        for path in [*partial.rglob("*"), partial]:
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        old = target.with_name(f".{target.name}.old-{os.getpid()}")
        if target.exists():
            os.replace(target, old)
        os.replace(partial, target)
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise TrntError(f"could not write {target}: {error.strerror or error}", "free some disk space") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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


def write_weights(
    folder: Path, tensors: Iterator[tuple[str, torch.Tensor]], sizes: Mapping[str, int], *, limit: int = SHARD_BYTES
) -> int:
    """Write safetensors files, one shard in memory at a time, and an index when there is more than one. Returns bytes.

    sizes: bytes of every tensor, in the order in which `tensors` hands them out.
    """
    from safetensors.torch import save_file

    shards = plan_shards(sizes, limit)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        held: dict[str, torch.Tensor] = {}
        for expected in names:
            name, tensor = next(tensors)
            if name != expected:
                raise AssertionError(f"{name} came where {expected} was planned")
            held[name] = tensor.contiguous().clone()
        save_file(held, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    total = sum(sizes.values())
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return total
