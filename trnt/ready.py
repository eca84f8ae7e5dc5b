"""Everything that is checked before any model is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trnt import device
from trnt.config import Settings
from trnt.errors import UsageError
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


def prepare(settings: Settings) -> Ready:
    """Check the model, the batch, the data, the tokenizer and the device. Raises UsageError or TrntError."""
    from trnt.data.tokenizer import check_vocabulary
    from trnt.data.tokens import check_length
    from trnt.data.tokens import prepare as prepare_tokens

    entry = registry.get(settings["model"])
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
    tokens = prepare_tokens(settings["data"], settings["tokenizer"], settings["text_field"])
    check_length(tokens, settings["seq_len"])
    check_vocabulary(tokens, entry.size.vocab_size, entry.name)
    kind = device.ensure(settings["device"])
    precision = settings["precision"] or ("fp32" if kind == "cpu" else "mixed")
    return Ready(settings, entry, tokens, kind, precision)


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
