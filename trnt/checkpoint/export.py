"""What makes an exported folder complete and right: model card, generation config, the check that it loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trnt import __version__
from trnt.checkpoint.source import Source
from trnt.data.tokenizer import special_id
from trnt.errors import TrntError
from trnt.models.registry import ModelEntry

GENERATION = "generation_config.json"
CARD = "README.md"


def write_generation_config(folder: Path) -> None:
    """generation_config.json with the tokenizer's end and padding; one that the source had stays."""
    if (folder / GENERATION).exists():
        return
    generation: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_p": 0.9}
    if (folder / "tokenizer.json").is_file():
        eos, pad = special_id(folder, "eos_token"), special_id(folder, "pad_token")
        if eos is not None:
            generation |= {"eos_token_id": eos, "pad_token_id": eos if pad is None else pad}
    (folder / GENERATION).write_text(json.dumps(generation, indent=2) + "\n")


def model_card(entry: ModelEntry, dtype: str, info: dict[str, Any]) -> str:
    """A short README.md for the folder."""
    total, active = entry.family.count_params(entry.size)
    rows = [
        ("base model", info.get("base")),
        ("model", f"{entry.name}, {entry.size.num_layers} layers, {total:,} parameters ({active:,} active), {dtype}"),
        ("trained on", info.get("data")),
        ("steps", info.get("steps")),
        ("tokens", f"{info['tokens']:,}" if info.get("tokens") else None),
        ("last loss", f"{info['loss']:.4f} nats per token" if info.get("loss") else None),
        ("command", f"`{info['command']}`" if info.get("command") else None),
        ("made with", f"trnt {__version__}"),
    ]
    lines = [f"- {name}: {value}" for name, value in rows if value is not None]
    return "\n".join([f"# {entry.name}", "", *lines, ""])


def check_loads(folder: Path, names: set[str]) -> None:
    """Compare the written names with those of `AutoModelForCausalLM`, built without weights from the same config.

    Raises TrntError when a key would be missing or unexpected.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    wanted = expected_file_names(model, config, names)
    missing, unexpected = sorted(wanted - names), sorted(names - wanted)
    if missing or unexpected:
        raise TrntError(
            f"transformers would not load the export: missing {missing[:5]}, unexpected {unexpected[:5]}",
            "report this: the table of names and the installed transformers disagree",
        )


def expected_file_names(model: Any, config: Any, written: set[str]) -> set[str]:
    """The names a file of this model holds: experts fused if they were written so, else one by one; no tied head."""
    names: set[str] = set()
    for name in model.state_dict():
        head, fused, tail = name.partition(".mlp.experts.")
        if fused and tail in ("gate_up_proj", "down_proj") and name not in written:
            parts = ("gate_proj", "up_proj") if tail == "gate_up_proj" else ("down_proj",)
            experts = range(getattr(config, "num_experts", None) or config.num_local_experts)
            names |= {f"{head}.mlp.experts.{e}.{part}.weight" for e in experts for part in parts}
        else:
            names.add(name)
    return names - {"lm_head.weight"} if config.tie_word_embeddings else names


def logits_moved(source: Source, entry: ModelEntry, names: list[str]) -> float:
    """The largest difference of a logit with and without the expert bias, over 64 tokens drawn with a fixed seed.

    names: the model's tensors in `source`, a DCP folder.
    """
    import torch

    from trnt.kernels.swap import swap

    spec = entry.family.titan_spec(entry.name, entry.size)
    swap(spec.model, moe_balance="bias")
    model = spec.model.build()
    model.init_states(buffer_device=torch.device("cpu"))
    model.load_state_dict({name: source.tensor(name) for name in names}, strict=False)
    ids = torch.randint(entry.size.vocab_size, (1, 64), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(64)[None]
    logits = []
    with torch.no_grad():
        for keep in (True, False):
            for layer in model.layers.values():
                if not keep:
                    layer.moe.expert_bias_E.zero_()
            logits.append(model(ids, positions=positions, attention_masks=model.get_attention_masks(positions)))
    return float((logits[0] - logits[1]).abs().max())
