"""An exported folder is complete, loads with transformers alone, and has the native model's logits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from transformers import AutoModelForCausalLM

from trnt.checkpoint.dcp import open_dcp
from trnt.checkpoint.inspect import check_source
from trnt.data.sources import SAMPLE_TOKENIZER
from trnt.errors import TrntError
from trnt.exporting import export_step
from trnt.kernels.swap import swap
from trnt.models import registry
from trnt.models.registry import ModelEntry
from trnt.opening import Opened, made_config


def small(name: str, **changes: object) -> ModelEntry:
    entry = registry.get(name)
    return replace(entry, size=replace(entry.size, **changes))


CASES = {
    "dense, tied": small("qwen3-tiny"),
    "dense, untied, one layer, odd vocabulary": small("qwen3-tiny", tied=False, num_layers=1, vocab_size=333),
    "head size of its own": small("qwen3-tiny", head_dim=48, rms_norm_eps=1e-5),
    "one key-value head": small("qwen3-tiny", num_kv_heads=1),
    "as many key-value heads as heads": small("qwen3-tiny", num_kv_heads=4, rope_theta=5e5),
    "experts": small("qwen3-tiny-moe", num_layers=2),
    "2 x expert width = hidden size": small(
        "qwen3-tiny-moe", num_layers=1, num_experts=6, top_k=1, moe_intermediate_size=128, tied=False
    ),
    "llama": small("llama3-tiny", vocab_size=333),
    "llama, scaled rope, untied": small("llama3-tiny", tied=False, rope_factor=8.0, rope_original_length=64),
    "more than ten experts and layers": small("qwen3-tiny-moe", num_layers=11, num_experts=12, top_k=3, hidden_size=64),
}


def native(entry: ModelEntry, moe_balance: str = "none") -> Any:
    config = entry.family.titan_spec(entry.name, entry.size).model
    swap(config, moe_balance=moe_balance)
    model = config.build()
    torch.manual_seed(0)
    model.init_states(buffer_device=torch.device("cpu"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.rand_like(parameter))
            else:
                parameter.mul_(3)
    return model


def saved(model: Any, folder: Path) -> Path:
    dcp.save(model.state_dict(), checkpoint_id=folder / "step-1", no_dist=True)
    return folder / "step-1"


def export_hf(
    step: Path, target: Path, *, entry: ModelEntry, tokenizer_folder: Path | None = None, **options: Any
) -> Any:
    """As from a run, of a model that no run describes."""
    source = open_dcp(step)
    check_source(source, entry)
    opened = Opened(source, entry, made_config(entry, tokenizer_folder), None, tokenizer_folder)
    return export_step(step, target, opened=opened, **options)


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    where = torch.arange(ids.shape[1]).repeat(ids.shape[0], 1)
    with torch.no_grad():
        return model(ids, positions=where, attention_masks=model.get_attention_masks(where))


@pytest.mark.parametrize("entry", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("shard_bytes", [10**9, 10**6])
def test_logits_equal_the_native_model_s(tmp_path: Path, entry: ModelEntry, shard_bytes: int) -> None:
    model = native(entry)
    export_hf(
        saved(model, tmp_path), tmp_path / "hf", entry=entry, tokenizer_folder=None, dtype="float32", force=False,
        shard_bytes=shard_bytes,
    )  # fmt: skip
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.dtype == torch.float32
    ids = torch.randint(entry.size.vocab_size, (2, 50), generator=torch.Generator().manual_seed(1))
    expected = logits(model, ids)
    with torch.no_grad():
        got = loaded(ids).logits
    # 1e-4 of the logits' scale: two fp32 implementations that sum in another order
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_the_folder_is_complete(tmp_path: Path) -> None:
    entry = small("qwen3-tiny-moe", num_layers=1)
    report = export_hf(
        saved(native(entry), tmp_path), tmp_path / "hf", entry=entry, tokenizer_folder=SAMPLE_TOKENIZER,
        dtype="bfloat16", force=False, info={"steps": 5, "tokens": 1000, "loss": 2.5, "command": "trnt train"},
    )  # fmt: skip
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    wanted = {"config.json", "generation_config.json", "model.safetensors", "README.md", "trnt-manifest.jsonl"}
    wanted |= {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}
    assert names == wanted
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "hf" / name).read_bytes() == (SAMPLE_TOKENIZER / name).read_bytes()
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["eos_token_id"], config["pad_token_id"], config["dtype"]) == (0, 1, "bfloat16")
    assert config["num_experts"] == config["num_local_experts"] == 16
    assert not {"rope_theta", "rope_parameters"} <= config.keys()
    assert "2.5" in (tmp_path / "hf" / "README.md").read_text()
    assert report["dropped"] is None
    assert report["bytes"] == 2 * entry.family.count_params(entry.size)[0]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "hf").dtype == torch.bfloat16


def test_a_checkpoint_of_another_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    step = saved(native(small("qwen3-tiny", num_layers=1)), tmp_path)
    with pytest.raises(TrntError, match=r"missing layers\.1\."):
        export_hf(step, tmp_path / "hf", entry=small("qwen3-tiny"), tokenizer_folder=None, dtype="float32", force=False)
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    entry = small("qwen3-tiny", num_layers=1)
    model = native(entry)
    with torch.no_grad():
        model.layers["0"].attention.wo.weight[3, 3] = float("nan")
    with pytest.raises(TrntError, match=r"o_proj\.weight holds NaN"):
        export_hf(
            saved(model, tmp_path), tmp_path / "hf", entry=entry, tokenizer_folder=None, dtype="float32", force=False
        )
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]


def test_a_dropped_bias_is_reported_with_how_far_the_logits_move(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = small("qwen3-tiny-moe", num_layers=1)
    model = native(entry, "bias")
    model.layers["0"].moe.expert_bias_E[::2] = 0.5
    report = export_hf(
        saved(model, tmp_path), tmp_path / "hf", entry=entry, tokenizer_folder=None, dtype="float32", force=False
    )
    assert report["dropped"]["largest"] == 0.5
    assert report["dropped"]["logits_moved"] > 0.01
    assert "logits move by up to" in capsys.readouterr().err
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    ids = torch.randint(4096, (1, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        moved = (loaded(ids).logits - logits(model, ids)).abs().max()
    # measured on the same ids; transformers sums in another order
    assert float(moved) == pytest.approx(report["dropped"]["logits_moved"], rel=1e-2)
