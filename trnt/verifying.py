"""`trnt verify`: one checkpoint by itself, or two against each other."""

from __future__ import annotations

from typing import Any

from trnt.checkpoint import verify
from trnt.checkpoint.inspect import model_tensors
from trnt.errors import TrntError, UsageError
from trnt.models.registry import ModelEntry
from trnt.opening import Opened, open_checkpoint

# What two configs of one model may say differently: none of it changes a tensor.
BESIDE = ("rope_theta", "max_seq_len", "rms_norm_eps")


def verify_paths(path: str, against: str | None, *, config: str | None = None) -> dict[str, Any]:
    """The report of `trnt verify`. `ok` is False when anything differs, is not finite or fails its checksum."""
    opened = open_checkpoint(path, config=config)
    problems: list[str] = []
    parts: int | None = None
    try:
        parts = verify.checksums(opened.source.path)
    except TrntError as error:
        problems.append(error.cause)
    if against is None:
        rows = verify.look(opened.source, model_tensors(opened.source))
    else:
        other = open_checkpoint(against, config=config)
        entry = smaller(opened, other)
        rows = verify.compare(opened.source, other.source, verify.pairs(opened.source, other.source, entry))
    different = [row.tensor for row in rows if row.different]
    problems += [f"{row.tensor}: {row.nan} NaN, {row.infinite} infinite" for row in rows if row.nan or row.infinite]
    if different:
        problems.append(f"{len(different)} tensors differ from {against}: {', '.join(different[:20])}")
    return {
        "path": path,
        "against": against,
        "model": opened.entry.name,
        "ok": not problems,
        "problems": problems,
        "checksums": parts,
        "rows": rows,
    }


def smaller(a: Opened, b: Opened) -> ModelEntry:
    """The model whose tensors both hold: equal, or one the other's first layers and experts. Raises UsageError."""
    one, two = a.entry.size, b.entry.size
    layers, experts = min(one.num_layers, two.num_layers), min(one.num_experts, two.num_experts)
    try:
        first, second = (opened.entry.cut(layers, experts or None) for opened in (a, b))
        same = first.family is second.family and _shape(first.size) == _shape(second.size)
    except UsageError:
        same = False
    if not same:
        raise UsageError(f"{a.source.path} and {b.source.path} hold different models", "compare two of one model")
    return first if one.num_layers <= two.num_layers else second


def _shape(size: Any) -> tuple[Any, ...]:
    return tuple(getattr(size, name) for name in size.__dataclass_fields__ if name not in BESIDE)
