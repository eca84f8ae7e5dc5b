"""Sizes, cuts, counts and the Hugging Face config, against what torchtitan builds and transformers reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from trnt.errors import TrntError, UsageError
from trnt.kernels.swap import swap
from trnt.models import qwen3, registry


def built(name: str, size: qwen3.Qwen3Size) -> torch.nn.Module:
    config = qwen3.titan_spec(name, size).model
    swap(config)
    with torch.device("meta"):
        return config.build()


@pytest.mark.parametrize("name", qwen3.SIZES)
def test_counted_parameters_are_those_of_the_built_model(name: str) -> None:
    size = qwen3.SIZES[name]
    model = built(name, size)
    total, active = qwen3.count_params(size)
    assert total == sum(p.numel() for p in model.parameters())
    idle = (size.num_experts - size.top_k) * 3 * size.hidden_size * size.moe_intermediate_size * size.num_layers
    assert active == total - idle


@pytest.mark.parametrize("name", qwen3.SIZES)
def test_flops_are_torchtitan_s_but_for_the_causal_half_of_attention(name: str) -> None:
    size = qwen3.SIZES[name]
    model = built(name, size)
    _, theirs = model.config.get_nparams_and_flops(model, 1024)
    causal_half = 6 * size.num_layers * size.num_heads * size.head_dim * 1024
    # torchtitan counts a tied embedding's matmul once, as we do; norms make the rest
    assert qwen3.flops_per_token(size, 1024) + causal_half == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [("qwen3-0.6b", 0.596e9, 0.596e9), ("qwen3-30b-a3b", 30.5e9, 3.35e9), ("qwen3-235b-a22b", 235e9, 22.2e9)],
)
def test_published_sizes(name: str, total: float, active: float) -> None:
    assert qwen3.count_params(qwen3.SIZES[name]) == pytest.approx((total, active), rel=0.005)


def test_cuts() -> None:
    size = qwen3.SIZES["qwen3-30b-a3b"]
    small = qwen3.cut("m", size, 4, 64)
    assert small == replace(size, num_layers=4, num_experts=64)
    assert qwen3.cut("m", size, None, None) == size
    for layers, experts, cause in ((0, None, "48 layers"), (49, None, "48 layers"), (None, 129, "128 experts")):
        with pytest.raises(UsageError, match=cause):
            qwen3.cut("m", size, layers, experts)
    with pytest.raises(UsageError, match="top_k") as caught:
        qwen3.cut("m", size, None, 7)
    assert "--experts 8" in caught.value.fix
    with pytest.raises(UsageError, match="dense"):
        qwen3.cut("m", qwen3.SIZES["qwen3-0.6b"], None, 4)


@pytest.mark.parametrize("name", qwen3.SIZES)
def test_the_hugging_face_config_reads_back_and_transformers_agrees(tmp_path: Path, name: str) -> None:
    size = qwen3.SIZES[name]
    written = qwen3.hf_config(size, dtype="float32", eos_id=0, pad_id=1)
    assert qwen3.size_from_hf_config(written) == size
    (tmp_path / "config.json").write_text(json.dumps(written))
    read = AutoConfig.from_pretrained(tmp_path)
    theirs = json.loads(read.to_json_string())
    assert "rope_parameters" in theirs
    assert qwen3.size_from_hf_config(theirs) == size


def test_a_config_that_contradicts_itself_is_refused() -> None:
    config = qwen3.hf_config(qwen3.SIZES["qwen3-tiny-moe"], dtype="float32")
    with pytest.raises(TrntError, match="rope_theta"):
        qwen3.size_from_hf_config(config | {"rope_parameters": {"rope_theta": 5.0}})
    with pytest.raises(TrntError, match="number of experts"):
        qwen3.size_from_hf_config(config | {"num_local_experts": 8})
    with pytest.raises(TrntError, match="mixes dense"):
        qwen3.size_from_hf_config(config | {"mlp_only_layers": [0]})


def test_specs_share_nothing() -> None:
    entry = registry.get("qwen3-tiny-moe")
    one, two = (qwen3.titan_spec(entry.name, entry.size).model for _ in range(2))
    one.layers[0].moe.num_experts = 3
    one.layers[0].attention.rope.max_seq_len = 7
    assert two.layers[0].moe.num_experts == 16
    assert two.layers[0].attention.rope.max_seq_len == 8192
