"""Sizes, counts, windows and names of GPT-OSS, against what torchtitan builds."""

from __future__ import annotations

import itertools

import pytest
import torch

from trnt.checkpoint import mapping
from trnt.errors import UsageError
from trnt.kernels.swap import swap
from trnt.models import gpt_oss, registry


def built(name: str) -> torch.nn.Module:
    config = gpt_oss.titan_spec(name, gpt_oss.SIZES[name]).model
    swap(config)
    with torch.device("meta"):
        return config.build()


@pytest.mark.parametrize("name", gpt_oss.SIZES)
def test_counted_parameters_and_flops_are_those_of_the_built_model(name: str) -> None:
    size = gpt_oss.SIZES[name]
    model = built(name)
    total, active = gpt_oss.count_params(size)
    assert total == sum(p.numel() for p in model.parameters())
    expert = 3 * size.hidden_size * size.moe_intermediate_size + 2 * size.moe_intermediate_size + size.hidden_size
    assert active == total - (size.num_experts - size.top_k) * expert * size.num_layers
    # torchtitan counts every layer's attention whole: no causal half, no window
    _, theirs = model.config.get_nparams_and_flops(model, 1024)
    whole = 12 * size.num_layers * size.num_heads * size.head_dim * 1024
    lengths = 6 * size.num_heads * size.head_dim * sum(keys(size, layer, 1024) for layer in range(size.num_layers))
    assert gpt_oss.flops_per_token(size, 1024) - lengths == pytest.approx(theirs - whole, rel=2e-3)


def keys(size: gpt_oss.GptOssSize, layer: int, length: int) -> float:
    """Twice the mean number of keys that a query of a layer sees, counted one by one."""
    most = size.sliding_window if layer % 2 == 0 else length
    return 2 * sum(min(query, most) for query in range(1, length + 1)) / length


def test_attention_flops_count_the_keys_that_are_seen() -> None:
    size = gpt_oss.SIZES["gpt-oss-tiny"]
    for short, long in itertools.pairwise((16, 32, 64, 1000)):
        grown = gpt_oss.flops_per_token(size, long) - gpt_oss.flops_per_token(size, short)
        seen = sum(keys(size, layer, long) - keys(size, layer, short) for layer in range(size.num_layers))
        assert grown == pytest.approx(6 * size.num_heads * size.head_dim * seen, rel=0.05)  # a key more or less


def test_published_sizes() -> None:
    assert gpt_oss.count_params(gpt_oss.SIZES["gpt-oss-20b"]) == pytest.approx((20.9e9, 4.19e9), rel=0.005)
    assert gpt_oss.count_params(gpt_oss.SIZES["gpt-oss-120b"]) == pytest.approx((116.8e9, 5.71e9), rel=0.005)
    assert registry.get("openai/gpt-oss-20b").name == "gpt-oss-20b"


def test_every_tensor_of_the_model_has_a_name_and_no_other() -> None:
    for name in gpt_oss.SIZES:
        state = {key: tuple(value.shape) for key, value in built(name).state_dict().items()}
        assert mapping.native_shapes(registry.get(name)) == state


def test_windows_come_in_turns_sliding_first_and_survive_a_cut() -> None:
    entry = registry.get("gpt-oss-20b").cut(3, 8)
    spec = entry.family.titan_spec(entry.name, entry.size).model
    swap(spec)
    windows = [layer.attention.inner_attention.window_size for layer in spec.layers]
    assert windows == [(127, 0), (-1, 0), (127, 0)]
    config = entry.family.hf_config(entry.size, dtype="bfloat16")
    assert config["layer_types"] == ["sliding_attention", "full_attention", "sliding_attention"]
    assert (config["num_hidden_layers"], config["num_local_experts"]) == (3, 8)


def test_fewer_experts_than_a_token_needs() -> None:
    with pytest.raises(UsageError, match="fewer than top_k"):
        registry.get("gpt-oss-20b").cut(None, 3)
    with pytest.raises(UsageError, match="32 experts"):
        registry.get("gpt-oss-20b").cut(None, 64)
