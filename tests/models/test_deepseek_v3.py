"""Sizes, cuts, counts and names of DeepSeek-V3, against what torchtitan builds."""

from __future__ import annotations

import pytest
import torch

from trnt.checkpoint import mapping
from trnt.errors import UsageError
from trnt.kernels.swap import swap
from trnt.models import deepseek_v3, registry


def built(name: str) -> torch.nn.Module:
    config = deepseek_v3.titan_spec(name, deepseek_v3.SIZES[name]).model
    swap(config)
    with torch.device("meta"):
        return config.build()


@pytest.mark.parametrize("name", deepseek_v3.SIZES)
def test_counted_parameters_and_flops_are_those_of_the_built_model(name: str) -> None:
    size = deepseek_v3.SIZES[name]
    model = built(name)
    total, active = deepseek_v3.count_params(size)
    assert total == sum(p.numel() for p in model.parameters())
    layers = size.num_layers - size.first_dense
    assert (
        active == total - (size.num_experts - size.top_k) * 3 * size.hidden_size * size.moe_intermediate_size * layers
    )
    _, theirs = model.config.get_nparams_and_flops(model, 1024)
    causal_half = 3 * size.num_layers * size.num_heads * (size.head_dim + size.v_head_dim) * 1024
    assert deepseek_v3.flops_per_token(size, 1024) + causal_half == pytest.approx(theirs, rel=2e-3)


def test_published_sizes() -> None:
    assert deepseek_v3.count_params(deepseek_v3.SIZES["deepseek-v3-671b"]) == pytest.approx((671e9, 37.5e9), rel=0.01)
    assert deepseek_v3.count_params(deepseek_v3.SIZES["deepseek-v3-16b"])[0] == pytest.approx(15.7e9, rel=0.01)
    assert deepseek_v3.count_params(deepseek_v3.SIZES["deepseek-v3-236b"])[0] == pytest.approx(236e9, rel=0.01)
    assert registry.get("deepseek-ai/DeepSeek-V3").name == "deepseek-v3-671b"
    assert registry.get("deepseek-ai/DeepSeek-R1").name == "deepseek-v3-671b"


def test_every_tensor_of_the_model_has_a_name_and_no_other() -> None:
    for name in deepseek_v3.SIZES:
        entry = registry.get(name)
        state = {key: tuple(value.shape) for key, value in built(name).state_dict().items()}
        assert mapping.native_shapes(entry) == state


def test_cuts_keep_groups_and_an_expert_layer() -> None:
    entry = registry.get("deepseek-v3-671b")
    assert entry.cut(4, 64).size.num_experts == 64
    with pytest.raises(UsageError, match="first 3 of deepseek-v3-671b are dense") as caught:
        entry.cut(3, None)
    assert "--layers 4" in caught.value.fix
    with pytest.raises(UsageError, match="4 of 8 equal groups") as caught:
        entry.cut(None, 60)
    assert caught.value.fix in ("use --experts 56", "use --experts 64")
    with pytest.raises(UsageError, match="4 of 8 equal groups") as caught:
        entry.cut(None, 8)
    assert caught.value.fix == "use --experts 16"
