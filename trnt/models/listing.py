"""The models as rows: for people as a table, for programs as dictionaries. No torch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trnt import console, plugins
from trnt.errors import unknown
from trnt.models import registry

TRAINING_BYTES = 16  # of one parameter: weight, gradient and AdamW's two moments in fp32
FILE_BYTES = 2  # of one parameter in a bf16 file


def row(entry: registry.ModelEntry) -> dict[str, Any]:
    """One model. Parameters are counts, lengths tokens, memory bytes."""
    family = next(name for name, module in registry.FAMILIES.items() if module is entry.family)
    total, active = entry.family.count_params(entry.size)
    return {
        "name": entry.name,
        "family": family,
        "params_total": total,
        "params_active": active,
        "layers": entry.size.num_layers,
        "experts": entry.size.num_experts,
        "top_k": entry.size.top_k,
        "context": entry.size.max_seq_len,
        "training_bytes": total * TRAINING_BYTES,
        "file_bytes": total * FILE_BYTES,
        "supports": supports(entry),
    }


def supports(entry: registry.ModelEntry) -> list[str]:
    """What can be done with it, by the names of commands and options."""
    found = ["train", "convert", "export", "--init-from", "--layers", "--backend transformers"]
    if entry.size.num_experts:
        found += ["--experts", "--moe-balance", "--kernels nki-sim"]
        found += [f"--kernels {name}" for name in plugins.installed("trnt.kernels")]
    return found


def rows(family: str | None = None) -> list[dict[str, Any]]:
    """All models, or one family's. Raises UsageError for a family that does not exist."""
    if family is not None and family not in registry.FAMILIES:
        raise unknown("family", family, registry.FAMILIES)
    found = (row(registry.get(name)) for name in registry.names())
    return [one for one in found if family in (None, one["family"])]


def describe(name: str) -> dict[str, Any]:
    """One model with every number of its size. Raises UsageError with the nearest name."""
    entry = registry.get(name)
    return {**row(entry), "model_types": list(entry.family.MODEL_TYPES), "size": asdict(entry.size)}


def table(found: list[dict[str, Any]]) -> str:
    """For people."""
    lines = [
        f"{'name':18} {'parameters':>11} {'active':>8} {'layers':>7} {'experts':>9} {'context':>8} {'to train':>10}"
    ]
    for one in found:
        experts = f"{one['experts']} top-{one['top_k']}" if one["experts"] else "-"
        active = console.human_count(one["params_active"]) if one["experts"] else "-"
        lines.append(
            f"{one['name']:18} {console.human_count(one['params_total']):>11} {active:>8} {one['layers']:>7} "
            f"{experts:>9} {one['context']:>8} {console.human_bytes(one['training_bytes']):>10}"
        )
    lines.append("\n'to train': weights, gradients and AdamW in fp32, before activations; 'trnt models NAME' shows one")
    return "\n".join(lines)


def page(one: dict[str, Any]) -> str:
    """One model for people."""
    size = "\n".join(f"  {key:22} {value}" for key, value in one["size"].items())
    active = f", {console.human_count(one['params_active'])} of them active per token" if one["experts"] else ""
    return "\n".join(
        [
            f"{one['name']} (family {one['family']}; model_type {' or '.join(one['model_types'])})",
            f"  {console.human_count(one['params_total'])} parameters{active}; context {one['context']:,} tokens",
            f"  to train in fp32: {console.human_bytes(one['training_bytes'])} before activations; "
            f"files in bf16: {console.human_bytes(one['file_bytes'])}",
            f"  supports {', '.join(one['supports'])}",
            "",
            size,
            "",
            f"what a run needs: trnt train --model {one['name']} --dry-run",
        ]
    )
