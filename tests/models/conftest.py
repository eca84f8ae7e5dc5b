"""Tiny folders as transformers writes them, of many architectures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 4096,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": {**MOE, "num_experts": 6, "norm_topk_prob": True},
    "deepseek_v3": {
        **MOE, **LATENT, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
        "first_k_dense_replace": 1, "num_key_value_heads": 4, "head_dim": 8, "num_nextn_predict_layers": 0,
    },
    "gpt_oss": {
        "num_experts_per_tok": 2, "num_local_experts": 6, "sliding_window": 9,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "gemma2": {"sliding_window": 9, "tie_word_embeddings": True, "final_logit_softcapping": 0.5},
    "gemma3_text": {"sliding_window": 9, "tie_word_embeddings": True},
    "granite": {"logits_scaling": 4.0},
    "olmo2": {},
    "mixtral": {"num_experts_per_tok": 2, "num_local_experts": 4},
}  # fmt: skip
# Those that no table of trnt's knows.
FOREIGN = ("gemma2", "gemma3_text", "granite", "olmo2", "mixtral")


@pytest.fixture
def hub_folder(tmp_path: Path) -> Callable[..., Path]:
    """A folder of random weights of a kind, with the sample's tokenizer."""

    def make(kind: str, name: str | None = None, **changes: Any) -> Path:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        from trnt.data.sources import SAMPLE_TOKENIZER

        torch.manual_seed(0)
        shape = {**SMALL, **KINDS[kind], **changes}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape), dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():  # norms of one would hide a mix-up
                parameter.add_(0.05 * torch.randn_like(parameter))
        folder = tmp_path / (name or kind)
        model.save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(SAMPLE_TOKENIZER / file, folder / file)
        return folder

    return make


def rows(run: Path) -> dict[int, dict[str, float]]:
    """A run's metrics by step."""
    found = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row for row in found}


def train(out: Path, **given: Any) -> dict[int, dict[str, float]]:
    """`trnt train` in this process: 64 tokens, two rows, seed 1. Its metrics by step."""
    from trnt import config, training

    usual = {"seq_len": 64, "batch_size": 2, "seed": 1, "out": str(out), "device": "cpu"}
    assert training.train(config.resolve({**usual, **given}, environment={}), as_json=False) == 0
    return rows(out)


def check_export(run: Path, target: Path) -> None:
    """`trnt export` in this process, and that transformers loads what it wrote."""
    import torch
    from transformers import AutoModelForCausalLM

    from trnt.exporting import export_run

    report = export_run(str(run), str(target), runs_dir="runs", dtype=None, force=False)
    assert report["checked"]
    loaded, info = AutoModelForCausalLM.from_pretrained(target, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.isfinite(value).all() for value in loaded.state_dict().values())
    assert json.loads((target / "config.json").read_text())["dtype"] == "float32"
    assert (target / "tokenizer.json").is_file()
