"""`trnt verify`: one checkpoint by itself, or two against each other."""

from __future__ import annotations

from typing import Any

from trnt import console
from trnt.checkpoint import verify
from trnt.checkpoint.inspect import model_tensors
from trnt.checkpoint.source import Source
from trnt.errors import TrntError, UsageError
from trnt.models.registry import ModelEntry, UnknownModel
from trnt.opening import Opened, open_checkpoint, open_files

# What two configs of one model may say differently: none of it changes a tensor.
BESIDE = ("rope_theta", "max_seq_len", "rms_norm_eps")


def verify_paths(path: str, against: str | None, *, config: str | None = None) -> dict[str, Any]:
    """The report of `trnt verify`. `ok` is False when anything differs, is not finite or fails its checksum."""
    one, two = _open(path, config), _open(against, config) if against is not None else None
    source = one.source if isinstance(one, Opened) else one
    problems: list[str] = []
    parts: int | None = None
    try:
        parts = verify.checksums(source.path)
    except TrntError as error:
        problems.append(error.cause)
    if two is None:
        rows = verify.look(source, model_tensors(source) if isinstance(one, Opened) else source.tensors)
    elif isinstance(one, Opened) and isinstance(two, Opened):
        rows = verify.compare_models(source, two.source, smaller(one, two))
    else:
        other = two.source if isinstance(two, Opened) else two
        assert other is not None
        rows = verify.compare(source, other, verify.same_names(source, other))
    different = [row.tensor for row in rows if row.different]
    problems += [f"{row.tensor}: {row.nan} NaN, {row.infinite} infinite" for row in rows if row.nan or row.infinite]
    if different:
        problems.append(f"{len(different)} tensors differ from {against}: {', '.join(different[:20])}")
    return {
        "path": path,
        "against": against,
        "model": one.entry.name if isinstance(one, Opened) else None,
        "ok": not problems,
        "problems": problems,
        "checksums": parts,
        "rows": rows,
    }


def _open(path: str, config: str | None) -> Opened | Source:
    """A checkpoint with its model, or its files alone where no family of trnt's has it."""
    try:
        return open_checkpoint(path, config=config)
    except UnknownModel as error:
        console.warn(f"{error.cause}: tensors are compared by their names alone")
        return open_files(path)


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
