"""Everything that is checked before any model is built."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from trnt import device
from trnt.config import Settings
from trnt.errors import UsageError
from trnt.kernels.choose import Kernels, choose
from trnt.models import registry
from trnt.models.registry import ModelEntry


@dataclass(frozen=True)
class Ready:
    """Everything that was checked before any model is built."""

    settings: Settings
    entry: ModelEntry
    tokens: Any
    kind: str
    precision: str
    start: Any = None
    """The weights that a new run starts from (`opening.Opened`), None for random ones."""
    kernels: Kernels = field(default_factory=lambda: Kernels("torch", ""))
    """What computes routing and experts."""


def prepare(settings: Settings) -> Ready:
    """Check the model, the batch, the data, the tokenizer and the device. Raises UsageError or TrntError."""
    from trnt.data.tokenizer import check_vocabulary
    from trnt.data.tokens import check_length
    from trnt.data.tokens import prepare as prepare_tokens

    opened = starting_weights(settings)
    entry = registry.get(settings["model"]) if opened is None else opened.entry
    entry = entry.cut(settings["layers"], settings["experts"])
    if settings["moe_balance"] != "none" and not entry.size.num_experts:
        raise UsageError(
            f"--moe-balance {settings['moe_balance']} needs experts, and {entry.name} is dense",
            "leave --moe-balance out, or choose a mixture of experts such as qwen3-tiny-moe",
        )
    if settings["seq_len"] > entry.size.max_seq_len:
        raise UsageError(
            f"--seq-len {settings['seq_len']} is longer than {entry.name} allows ({entry.size.max_seq_len})",
            f"use --seq-len {entry.size.max_seq_len} or less",
        )
    rows = settings["global_batch_size"]
    if rows > 0 and rows % settings["batch_size"]:
        raise UsageError(
            f"--global-batch-size {rows} is not a multiple of --batch-size {settings['batch_size']}",
            f"use --global-batch-size {-(-rows // settings['batch_size']) * settings['batch_size']}",
        )
    tokenizer = settings["tokenizer"] or tokenizer_of(opened)
    tokens = prepare_tokens(settings["data"], tokenizer, settings["text_field"])
    check_length(tokens, settings["seq_len"])
    check_vocabulary(tokens, entry.size.vocab_size, entry.name)
    kind = device.ensure(settings["device"])
    precision = settings["precision"] or ("fp32" if kind == "cpu" else "mixed")
    kernels = choose(settings["kernels"], kind, entry.size.num_experts, entry.size.top_k)
    return Ready(settings, entry, tokens, kind, precision, opened, kernels)


def starting_weights(settings: Settings) -> Any:
    """What --init-from names, opened and checked; None without it.

    Raises UsageError when --model was given too and is another model, TrntError with what is wrong with the files.
    """
    if settings["init_from"] is None:
        return None
    from trnt.opening import open_checkpoint

    opened = open_checkpoint(settings["init_from"], revision=settings["revision"])
    if settings.origin("model") == "default":
        return opened
    named = registry.get(settings["model"])
    if named.family is not opened.entry.family or not same_width(named.size, opened.entry.size):
        raise UsageError(
            f"--model {named.name} is not the model in {settings['init_from']}", "leave --model out: the folder says it"
        )
    return replace(opened, entry=replace(opened.entry, name=named.name))


def same_width(a: Any, b: Any) -> bool:
    """Whether two sizes differ in depth and number of experts at most."""
    return all(getattr(a, name) == getattr(b, name) for name in ("hidden_size", "num_heads", "head_dim", "vocab_size"))


def tokenizer_of(opened: Any) -> str | None:
    """The tokenizer that came with the weights."""
    if opened is None or opened.assets is None or not (opened.assets / "tokenizer.json").is_file():
        return None
    return str(opened.assets)


def identity(ready: Ready) -> dict[str, Any]:
    """What must be equal for a run to be resumed with the same result."""
    settings = ready.settings
    return {
        "model": ready.entry.name,
        "layers": ready.entry.size.num_layers,
        "experts": ready.entry.size.num_experts,
        "moe_balance": settings["moe_balance"],
        "data": ready.tokens.fingerprint,
        "seq_len": settings["seq_len"],
        "seed": settings["seed"],
        "shuffle": settings["shuffle"],
        "precision": ready.precision,
        "optimizer": settings["optimizer"],
    }
