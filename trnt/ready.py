"""Everything that is checked before any model is built."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from trnt import device
from trnt.config import Settings
from trnt.errors import UsageError
from trnt.kernels.choose import Kernels, choose
from trnt.models.registry import ModelEntry
from trnt.starting import Beginning, begin


@dataclass(frozen=True)
class Ready:
    """Everything that was checked before any model is built."""

    settings: Settings
    tokens: Any
    kind: str
    precision: str
    beginning: Beginning
    kernels: Kernels
    """What computes routing and experts."""

    @property
    def entry(self) -> ModelEntry:
        """The model, cut."""
        return self.beginning.entry

    @property
    def native(self) -> bool:
        """Whether torchtitan's model code with trnt's kernels computes it."""
        return bool(self.settings["backend"] == "native")


def prepare(settings: Settings) -> Ready:
    """Check the model, the batch, the data, the tokenizer and the device. Raises UsageError or TrntError."""
    from trnt.data.tokenizer import check_vocabulary
    from trnt.data.tokens import check_length
    from trnt.data.tokens import prepare as prepare_tokens

    beginning = begin(settings)
    entry, origin = beginning.entry, beginning.origin
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
    tokenizer = settings["tokenizer"] or (origin.tokenizer if origin is not None else None)
    tokens = prepare_tokens(settings["data"], tokenizer, settings["text_field"])
    check_length(tokens, settings["seq_len"])
    check_vocabulary(tokens, entry.size.vocab_size, entry.name)
    kind = device.ensure(settings["device"])
    precision = settings["precision"] or ("fp32" if kind == "cpu" else "mixed")
    kernels = Kernels("torch", "")
    if settings["backend"] == "native":
        kernels = choose(settings["kernels"], kind, entry.size.num_experts, entry.size.top_k)
    return Ready(settings, tokens, kind, precision, beginning, kernels)


def identity(ready: Ready) -> dict[str, Any]:
    """What must be equal for a run to be resumed with the same result."""
    settings, origin = ready.settings, ready.beginning.origin
    found = {
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
    if not ready.native:
        found["backend"] = settings["backend"]
    if origin is not None and settings["init_from"] is None:  # the name does not say what the model is
        text = json.dumps(origin.config, sort_keys=True)
        found["config"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found
