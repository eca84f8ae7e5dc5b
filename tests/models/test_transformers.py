"""The numbers of any config.json, counted on the model that transformers builds; what cannot be trained is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.models.conftest import KINDS, SMALL
from trnt.errors import TrntError, UsageError
from trnt.models import registry, transformers


def config(kind: str, **changes: Any) -> dict[str, Any]:
    found = AutoConfig.for_model(kind, **{**SMALL, **KINDS.get(kind, {}), **changes})
    return dict(json.loads(found.to_json_string(use_diff=False)))


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_and_parameters_are_those_of_transformers_model(kind: str) -> None:
    size = transformers.from_config(config(kind))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **KINDS[kind]}))
    total, active = transformers.count_params(size)
    assert total == sum(p.numel() for p in model.parameters())
    assert (size.num_layers, size.hidden_size, size.vocab_size) == (2, 64, 4096)
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    assert bool(experts) == bool(size.num_experts)
    assert active == total - (experts * (size.num_experts - size.top_k) // size.num_experts if experts else 0)


@pytest.mark.parametrize("name", ["llama3-tiny", "qwen3-tiny", "qwen3-tiny-moe", "deepseek-v3-tiny", "gpt-oss-tiny"])
def test_parameters_and_arithmetic_agree_with_the_native_family(name: str) -> None:
    entry = registry.get(name)
    size = transformers.from_config(entry.family.hf_config(entry.size, dtype="float32"))
    # the correction bias of DeepSeek-V3 is a buffer on both sides
    assert transformers.count_params(size) == entry.family.count_params(entry.size)
    # the window of GPT-OSS and the head sizes of latent attention are not known here
    close = {"rel": 0.02} if name == "deepseek-v3-tiny" else {"rel": 0.005}
    assert transformers.flops_per_token(size, 32) == pytest.approx(
        entry.family.flops_per_token(entry.size, 32), **close
    )


def test_cuts_change_the_config_they_come_from() -> None:
    size = transformers.from_config(config("gpt_oss", num_hidden_layers=4))
    found = transformers.cut("x", size, 1, 3)
    assert (found.num_layers, found.num_experts) == (1, 3)
    assert (found.config["num_hidden_layers"], found.config["num_local_experts"]) == (1, 3)
    assert found.config["layer_types"] == ["sliding_attention"]
    assert transformers.from_config(found.config).num_experts == 3
    assert size.config["num_hidden_layers"] == 4
    with pytest.raises(UsageError, match="is dense"):
        transformers.cut("x", transformers.from_config(config("llama")), None, 3)
    small = AutoConfig.for_model("gpt2", n_embd=64, n_layer=2, n_head=4, vocab_size=4096)
    with pytest.raises(UsageError, match="names its layers otherwise"):
        transformers.cut("x", transformers.from_config(small.to_dict()), 1, None)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"model_type": "llama5"}, "has no model_type 'llama5'"),
        ({"model_type": "clip"}, "no language model"),
        ({"model_type": "mamba"}, "number of attention heads"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}, "quantised"),
    ],
)
def test_what_cannot_be_trained_is_one_line(given: dict[str, Any], word: str) -> None:
    with pytest.raises(TrntError, match=word):
        transformers.from_config(given)
