"""Sizes, counts and the Hugging Face config of Llama, against what torchtitan builds and transformers reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from trnt.errors import TrntError, UsageError
from trnt.kernels.swap import swap
from trnt.models import llama3, registry


def built(name: str, size: llama3.Llama3Size) -> torch.nn.Module:
    config = llama3.titan_spec(name, size).model
    swap(config)
    with torch.device("meta"):
        return config.build()


@pytest.mark.parametrize("name", llama3.SIZES)
def test_counted_parameters_and_flops_are_those_of_the_built_model(name: str) -> None:
    size = llama3.SIZES[name]
    model = built(name, size)
    total, active = llama3.count_params(size)
    assert total == active == sum(p.numel() for p in model.parameters())
    _, theirs = model.config.get_nparams_and_flops(model, 1024)
    causal_half = 6 * size.num_layers * size.num_heads * size.head_dim * 1024
    assert llama3.flops_per_token(size, 1024) + causal_half == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "total"),
    [("llama3-8b", 8.03e9), ("llama3-70b", 70.6e9), ("llama3.1-405b", 405.9e9), ("llama3.2-1b", 1.236e9)],
)
def test_published_sizes(name: str, total: float) -> None:
    assert llama3.count_params(llama3.SIZES[name])[0] == pytest.approx(total, rel=0.005)


@pytest.mark.parametrize("name", llama3.SIZES)
def test_the_hugging_face_config_reads_back_and_transformers_agrees(tmp_path: Path, name: str) -> None:
    size = llama3.SIZES[name]
    written = llama3.hf_config(size, dtype="float32", eos_id=0, pad_id=1)
    assert llama3.size_from_hf_config(written) == size
    (tmp_path / "config.json").write_text(json.dumps(written))
    theirs = json.loads(AutoConfig.from_pretrained(tmp_path).to_json_string())
    assert "rope_parameters" in theirs
    assert llama3.size_from_hf_config(theirs) == size


@pytest.mark.parametrize(
    ("hub", "name"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"),
        ("meta-llama/Meta-Llama-3.1-405B", "llama3.1-405b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("meta-llama/Llama-3.2-1B", "llama3.2-1b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3.3-70b"),
    ],
)
def test_hub_ids_are_names(hub: str, name: str) -> None:
    assert registry.get(hub).name == name


def test_what_the_family_does_not_have_is_refused() -> None:
    config = llama3.hf_config(llama3.SIZES["llama3-tiny"], dtype="float32")
    with pytest.raises(TrntError, match="attention_bias True"):
        llama3.size_from_hf_config({**config, "attention_bias": True})
    with pytest.raises(TrntError, match="yarn"):
        llama3.size_from_hf_config({**config, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}})
    with pytest.raises(UsageError, match="dense"):
        llama3.cut("llama3-8b", llama3.SIZES["llama3-8b"], None, 4)
    assert llama3.cut("m", llama3.SIZES["llama3-8b"], 4, None) == replace(llama3.SIZES["llama3-8b"], num_layers=4)
