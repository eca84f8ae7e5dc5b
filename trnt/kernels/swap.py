"""Putting trnt's kernels into a torchtitan model config, before it is built."""

from __future__ import annotations

from typing import Any

from trnt import device, plugins

device.ensure()

from torch.distributed.tensor import DTensor
from torchtitan.config import derive
from torchtitan.models.common import Embedding as TitanEmbedding
from torchtitan.models.common import Linear as TitanLinear
from torchtitan.models.common.moe import GroupedExperts
from torchtitan.models.gpt_oss.model import Attention as TitanSinks
from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts

from trnt.errors import TrntError
from trnt.kernels import grads
from trnt.kernels.attention import DocumentAttention
from trnt.kernels.clamped import ClampedExperts, RowwiseLinear, SinkAttention
from trnt.kernels.dispatch import Dispatcher
from trnt.kernels.linear import Embedding, Linear
from trnt.kernels.moe import Experts, Router
from trnt.kernels.routed import CpuRoutedExperts

AUX_COEFF = 1e-3  # router_aux_loss_coef of the published Qwen3 configs
BIAS_COEFF = 1e-3  # torchtitan's default step of the balance bias


def swap(model_config: Any, *, moe_balance: str = "none", kernels: str = "torch") -> None:
    """Edit a `Decoder.Config` in place: attention, experts, linear layers by ours, expert balance as asked.

    kernels: torch, a plugin's, or nki and nki-sim, which share their modules: where the tensors are decides.
    moe_balance: none; bias (torchtitan's loss-free bias, which a Hugging Face export cannot carry); aux (a loss term).
    """
    routed_type, experts_types, router_type = parts_of(kernels)
    for layer in model_config.layers:
        layer.attention.inner_attention = derive(layer.attention.inner_attention, DocumentAttention.Config)
        if isinstance(layer.attention, TitanSinks.Config):
            layer.attention = derive(layer.attention, SinkAttention.Config)
            layer.attention.wo = derive(layer.attention.wo, RowwiseLinear.Config)
        if layer.moe is None:
            continue
        routed = layer.moe.routed_experts = derive(layer.moe.routed_experts, routed_type)
        experts_type = experts_types.get(type(routed.inner_experts))
        if experts_type is None:
            raise TrntError(f"the kernels {kernels} have no experts like this model's", "use --kernels torch")
        routed.inner_experts = derive(routed.inner_experts, experts_type)
        routed.token_dispatcher = derive(routed.token_dispatcher, Dispatcher.Config)
        # A sigmoid router comes with a trained bias: it stays, and moves only when asked (assemble.py).
        biased = moe_balance == "bias" or layer.moe.router.score_func == "sigmoid"
        layer.moe.load_balance_coeff = BIAS_COEFF if biased else None
        if moe_balance == "aux":
            layer.moe.router = derive(layer.moe.router, router_type, aux_coeff=AUX_COEFF)
        elif kernels != "torch":
            layer.moe.router = derive(layer.moe.router, router_type)
    for theirs, ours in ((TitanLinear.Config, Linear.Config), (TitanEmbedding.Config, Embedding.Config)):
        for _, found, parent, name in list(model_config.traverse(theirs)):
            if type(found) is theirs and isinstance(name, str):
                setattr(parent, name, derive(found, ours))


def parts_of(kernels: str) -> tuple[Any, dict[Any, Any], Any]:
    """The configs of routed experts, of experts by torchtitan's own, and of the router.

    Raises TrntError for a plugin that cannot be loaded.
    """
    brought = plugins.installed("trnt.kernels").get(kernels)
    if brought is not None:
        routed, experts, router = brought.load()()
        return routed, {GroupedExperts.Config: experts}, router
    if kernels == "torch":
        kinds = {GroupedExperts.Config: Experts.Config, GptOssGroupedExperts.Config: ClampedExperts.Config}
        return CpuRoutedExperts.Config, kinds, Router.Config
    from trnt.kernels.nki import modules

    kinds = {GroupedExperts.Config: modules.NkiExperts.Config}
    kinds[GptOssGroupedExperts.Config] = modules.NkiClampedExperts.Config
    return modules.NkiRoutedExperts.Config, kinds, modules.NkiRouter.Config


def own_gradients(model: Any, dtype: Any = None, *, sparse: bool = False) -> list[Any]:
    """Let the swapped modules write their weights' gradients in place, kept in `dtype`. Returns those weights.

    sparse: an embedding that is not the head as well keeps only the rows that were looked up. Sharded weights are left
    to FSDP. Call it once the model is laid out, and only when nothing compiles it.
    """
    found: dict[int, Any] = {}
    looked_up: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, Embedding):
            looked_up[id(module.weight)] = module.weight
        elif isinstance(module, Linear):
            found[id(module.weight)] = module.weight
        elif isinstance(module, CpuRoutedExperts):
            found |= {id(weight): weight for weight in module.inner_experts.large_weights()}
    owned = []
    for key, weight in (found | looked_up).items():
        if weight.requires_grad and not isinstance(weight, DTensor):
            grads.own(weight, dtype, sparse=sparse and key not in found)
            owned.append(weight)
    return owned
