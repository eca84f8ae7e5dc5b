"""Writing the weights of a Hugging Face folder: safetensors files and their index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 5 * 10**9


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
        (folder / file).chmod(0o644)  # safetensors makes it readable for its owner alone
        weight_map |= dict.fromkeys(names, file)
    total = sum(sizes.values())
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return total
