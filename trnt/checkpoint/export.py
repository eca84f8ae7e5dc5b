"""A checkpoint step as a complete Hugging Face folder: weights, configs, tokenizer, model card, checked."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trnt import __version__, console
from trnt.checkpoint import mapping
from trnt.checkpoint.dcp import DcpFolder, open_dcp
from trnt.checkpoint.files import new_folder
from trnt.checkpoint.hf import SHARD_BYTES, write_weights
from trnt.data.tokenizer import special_id, tokenizer_files
from trnt.errors import TrntError
from trnt.models.registry import ModelEntry

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def export_hf(
    step_folder: Path,
    target: Path,
    *,
    entry: ModelEntry,
    tokenizer_folder: Path | None,
    dtype: str,
    force: bool,
    moe_balance: str = "none",
    info: dict[str, Any] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> dict[str, Any]:
    """Write `target`. Returns the report: folder, tensors, bytes, dtype, architecture, what was dropped.

    Everything is checked before anything is written: names and shapes of the checkpoint against the model's. Raises
    TrntError when they differ, when a weight is NaN or infinite, or when the finished folder would not load.
    """
    source = open_dcp(step_folder)
    shapes = {name: source.shapes()[name] for name in source.model_names()}
    extra = mapping.dropped_names(entry)
    mapping.check(mapping.native_shapes(entry), shapes, where=str(step_folder), extra_ok=extra)
    dropped = dropped_bias(source, entry, extra)
    sizes = {name: math.prod(shape) * BYTES[dtype] for name, shape in mapping.hf_shapes(entry).items()}
    with new_folder(target, force=force) as folder:
        written = write_weights(folder, weights(source, entry, dtype), sizes, limit=shard_bytes)
        config = write_configs(folder, entry, dtype, tokenizer_folder)
        (folder / "README.md").write_text(model_card(entry, dtype, info or {}), encoding="utf-8")
        check_loads(folder, set(sizes))
    report = {
        "folder": str(target),
        "step_folder": str(step_folder),
        "architecture": config["architectures"][0],
        "tensors": len(sizes),
        "bytes": written,
        "dtype": dtype,
        "dropped": dropped,
    }
    if dropped:
        console.warn(
            f"the expert balance bias (up to {dropped['largest']:.4g}) has no place in a Hugging Face folder and is "
            f"dropped: logits move by up to {dropped['logits_moved']:.4g}; --moe-balance aux or none trains without it"
        )
    return report


def weights(source: DcpFolder, entry: ModelEntry, dtype: str) -> Iterator[tuple[str, Any]]:
    """The Hugging Face tensors in the wanted dtype. Raises TrntError at the first that is not finite."""
    import torch

    with console.progress("exporting", total=len(mapping.hf_shapes(entry)), unit="tensors") as ticker:
        for name, tensor in mapping.to_hf(entry, source.read):
            if not torch.isfinite(tensor).all():
                raise TrntError(f"{name} holds NaN or infinite values", "export an earlier step of the run")
            yield name, tensor.to(getattr(torch, dtype))
            ticker.advance()


def write_configs(folder: Path, entry: ModelEntry, dtype: str, tokenizer_folder: Path | None) -> dict[str, Any]:
    """config.json, generation_config.json and the tokenizer's files, byte for byte. Returns the config."""
    eos = pad = None
    if tokenizer_folder is not None and (tokenizer_folder / "tokenizer.json").is_file():
        eos, pad = special_id(tokenizer_folder, "eos_token"), special_id(tokenizer_folder, "pad_token")
        for path in tokenizer_files(tokenizer_folder):
            shutil.copyfile(path, folder / path.name)
    config: dict[str, Any] = entry.family.hf_config(entry.size, dtype=dtype, eos_id=eos, pad_id=pad)
    generation: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_p": 0.9}
    if eos is not None:
        generation |= {"eos_token_id": eos, "pad_token_id": eos if pad is None else pad}
    for name, value in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")
    return config


def model_card(entry: ModelEntry, dtype: str, info: dict[str, Any]) -> str:
    """A short README.md for the folder."""
    total, active = entry.family.count_params(entry.size)
    rows = [
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
    wanted = expected_file_names(model, config)
    missing, unexpected = sorted(wanted - names), sorted(names - wanted)
    if missing or unexpected:
        raise TrntError(
            f"transformers would not load the export: missing {missing[:5]}, unexpected {unexpected[:5]}",
            "report this: the table of names and the installed transformers disagree",
        )


def expected_file_names(model: Any, config: Any) -> set[str]:
    """The names a file of this model holds: fused experts are stored expert by expert, a tied head not at all."""
    names: set[str] = set()
    for name in model.state_dict():
        head, fused, tail = name.partition(".mlp.experts.")
        if fused and tail in ("gate_up_proj", "down_proj"):
            parts = ("gate_proj", "up_proj") if tail == "gate_up_proj" else ("down_proj",)
            experts = range(getattr(config, "num_experts", None) or config.num_local_experts)
            names |= {f"{head}.mlp.experts.{e}.{part}.weight" for e in experts for part in parts}
        else:
            names.add(name)
    return names - {"lm_head.weight"} if config.tie_word_embeddings else names


def dropped_bias(source: DcpFolder, entry: ModelEntry, names: list[str]) -> dict[str, Any] | None:
    """The balance bias that the Hub has no place for, and how far the logits move without it; None when it is zero."""
    found = {name: source.read(name) for name in names if name in source.shapes()}
    largest = max((float(bias.abs().max()) for bias in found.values()), default=0.0)
    if not largest:
        return None
    return {"names": sorted(found), "largest": largest, "logits_moved": logits_moved(source, entry)}


def logits_moved(source: DcpFolder, entry: ModelEntry) -> float:
    """The largest difference of a logit with and without the bias, over 64 tokens drawn with a fixed seed."""
    import torch

    from trnt.kernels.swap import swap

    spec = entry.family.titan_spec(entry.name, entry.size)
    swap(spec.model, moe_balance="bias")
    model = spec.model.build()
    model.init_states(buffer_device=torch.device("cpu"))
    model.load_state_dict({name: source.read(name) for name in source.model_names()}, strict=False)
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
