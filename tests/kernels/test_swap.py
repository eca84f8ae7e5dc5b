"""What the swap puts where, and that every parameter of the swapped model learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trnt.kernels.attention import DocumentAttention
from trnt.kernels.dispatch import Dispatcher
from trnt.kernels.moe import Experts, Router
from trnt.kernels.swap import BIAS_COEFF, swap
from trnt.models import registry


@pytest.mark.parametrize(("balance", "coefficient"), [("none", None), ("bias", BIAS_COEFF), ("aux", None)])
def test_the_swap_reaches_every_layer(balance: str, coefficient: float | None) -> None:
    entry = registry.get("qwen3-tiny-moe")
    config = entry.family.titan_spec(entry.name, entry.size).model
    swap(config, moe_balance=balance)
    for layer in config.layers:
        assert isinstance(layer.attention.inner_attention, DocumentAttention.Config)
        assert isinstance(layer.moe.routed_experts.inner_experts, Experts.Config)
        assert isinstance(layer.moe.routed_experts.token_dispatcher, Dispatcher.Config)
        assert isinstance(layer.moe.router, Router.Config) == (balance == "aux")
        assert layer.moe.load_balance_coeff == coefficient
        assert layer.moe.router.top_k == 4


@pytest.mark.parametrize("name", ["qwen3-tiny", "qwen3-tiny-moe"])
def test_every_parameter_of_a_swapped_model_gets_a_gradient(name: str, tiny_model: Callable[..., Any]) -> None:
    model = tiny_model(name)
    ids = torch.randint(4096, (2, 64))
    where = torch.arange(64).repeat(2, 1)
    model(ids, positions=where, attention_masks=model.get_attention_masks(where)).square().mean().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not without
