"""Putting trnt's kernels into a torchtitan model config, before it is built."""

from __future__ import annotations

from typing import Any

from trnt import device

device.ensure()

from torchtitan.config import derive

from trnt.kernels.attention import DocumentAttention
from trnt.kernels.dispatch import Dispatcher
from trnt.kernels.moe import Experts, Router

AUX_COEFF = 1e-3  # router_aux_loss_coef of the published Qwen3 configs
BIAS_COEFF = 1e-3  # torchtitan's default step of the balance bias


def swap(model_config: Any, *, moe_balance: str = "none") -> None:
    """Edit a `Decoder.Config` in place: attention and experts by ours, expert balance as asked.

    moe_balance: none; bias (torchtitan's loss-free bias, which a Hugging Face export cannot carry); aux (a loss term).
    """
    for layer in model_config.layers:
        layer.attention.inner_attention = DocumentAttention.Config()
        if layer.moe is None:
            continue
        routed = layer.moe.routed_experts
        routed.inner_experts = derive(routed.inner_experts, Experts.Config)
        routed.token_dispatcher = derive(routed.token_dispatcher, Dispatcher.Config)
        layer.moe.load_balance_coeff = BIAS_COEFF if moe_balance == "bias" else None
        if moe_balance == "aux":
            layer.moe.router = derive(layer.moe.router, Router.Config, aux_coeff=AUX_COEFF)
