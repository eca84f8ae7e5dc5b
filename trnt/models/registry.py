"""The model names a user types. No torch here: names, completion and did-you-mean answer at once.

A family is a module with: SIZES (name -> size), HUB_NAMES (a Hub name's last part -> name), MODEL_TYPES and EXPERT_KEYS
(of config.json), TABLE (rows of names),
FUSED, DROPPED, `row_kinds`, `dimensions`, `cut`, `count_params`, `flops_per_token`, `titan_spec`, `hf_config` and
`size_from_hf_config`; `models/qwen3.py` is the pattern. A size has at least num_layers, hidden_size, num_heads,
num_kv_heads, head_dim, vocab_size, tied, intermediate_size, num_experts, top_k, moe_intermediate_size, max_seq_len and
attention_values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trnt import plugins
from trnt.errors import TrntError, unknown
from trnt.models import deepseek_v3, gpt_oss, llama3, qwen3

PROTOCOL = (
    *("SIZES", "HUB_NAMES", "MODEL_TYPES", "EXPERT_KEYS", "TABLE", "FUSED", "DROPPED"),
    *("row_kinds", "dimensions", "cut", "count_params", "flops_per_token"),
    *("titan_spec", "hf_config", "size_from_hf_config"),
)
FAMILIES: dict[str, Any] = {"qwen3": qwen3, "llama3": llama3, "deepseek_v3": deepseek_v3, "gpt_oss": gpt_oss}
FAMILIES |= plugins.loaded("trnt.models", PROTOCOL, set(FAMILIES))
SUFFIXES = ("-instruct", "-base", "-chat", "-hf")  # of Hub names: other weights, the same sizes


class UnknownModel(TrntError):
    """Weights whose family cannot be told, or is none that trnt knows."""


@dataclass(frozen=True)
class ModelEntry:
    """A named model: its family's module and its size, perhaps cut."""

    name: str
    family: Any
    size: Any

    def cut(self, layers: int | None, experts: int | None) -> ModelEntry:
        """The first `layers` layers and `experts` experts of this model. Raises UsageError when that cannot be."""
        return replace(self, size=self.family.cut(self.name, self.size, layers, experts))


def names() -> list[str]:
    """All names, smallest first within a family."""
    return [name for family in FAMILIES.values() for name in family.SIZES]


def from_hf_config(config: dict[str, Any], name: str) -> ModelEntry:
    """The model that a config.json describes. Raises TrntError for a family that trnt does not know."""
    wanted = config.get("model_type")
    for family in FAMILIES.values():
        if wanted in family.MODEL_TYPES:
            return ModelEntry(name, family, family.size_from_hf_config(config))
    known = ", ".join(kind for family in FAMILIES.values() for kind in family.MODEL_TYPES)
    raise UnknownModel(f"{name}: config.json says model_type {wanted!r}", f"trnt knows the model types {known}")


def get(name: str) -> ModelEntry:
    """The model of a name; `Qwen/Qwen3-30B-A3B` means `qwen3-30b-a3b`. Raises UsageError with the nearest name."""
    wanted = name.rpartition("/")[2].lower()
    for suffix in SUFFIXES:
        wanted = wanted.removesuffix(suffix)
    for family in FAMILIES.values():
        wanted = family.HUB_NAMES.get(wanted, wanted)
        if wanted in family.SIZES:
            return ModelEntry(wanted, family, family.SIZES[wanted])
    raise unknown("model", name, names(), listed_by="trnt models")
