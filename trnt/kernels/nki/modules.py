"""torchtitan's router and routed experts, computed by the NKI operators."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trnt import device

device.ensure()

from torchtitan.models.common.moe import GroupedExperts, RoutedExperts
from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts

from trnt.kernels.moe import AddLoss, Router, balance_loss
from trnt.kernels.nki import torch_ops
from trnt.parallel.parts import local


class NkiRouter(Router):
    """The router with scores, choice and affinities by `trnt::route`; the gate's product stays torch's."""

    @dataclass(kw_only=True, slots=True)
    class Config(Router.Config):
        pass

    def forward(
        self, x_BLD: torch.Tensor, expert_bias_E: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(affinities (B, L, K) fp32, ids (B, L, K), logits (B, L, E)). Equal scores: the lower index wins."""
        with torch.autocast(device_type=x_BLD.device.type, dtype=torch.float32):
            logits_BLE = self.gate(x_BLD)
        groups, limited = self.num_expert_groups or 0, self.num_limited_groups or 0
        scores_TK, ids_TK = torch_ops.route(
            logits_BLE.flatten(0, 1),
            expert_bias_E,
            self.top_k,
            self.score_func,
            self.route_norm,
            self.route_scale,
            groups,
            limited,
        )
        shape = (*logits_BLE.shape[:2], self.top_k)
        scores_BLK, ids_BLK = scores_TK.view(shape), ids_TK.view(shape)
        if self.aux_coeff and torch.is_grad_enabled():
            all_BLE = logits_BLE.softmax(-1) if self.score_func == "softmax" else logits_BLE.sigmoid()
            loss = balance_loss(all_BLE, ids_BLK)
            self.last_aux = loss.detach()
            scores_BLK = AddLoss.apply(scores_BLK, loss, self.aux_coeff * self.aux_weight)
        return scores_BLK, ids_BLK, logits_BLE


class NkiExperts(GroupedExperts):
    """The experts by `trnt::experts_forward`, for rows sorted already, as after an expert-parallel dispatch."""

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        """(R, D) from tokens (R, D) sorted by expert and their counts (E,)."""
        experts = torch.arange(len(num_tokens_per_expert_E), device=x_RD.device)
        ids_R1 = torch.repeat_interleave(experts, num_tokens_per_expert_E.long(), output_size=len(x_RD))[:, None]
        return self.compute(x_RD, torch.ones_like(ids_R1, dtype=torch.float32), ids_R1)

    def compute(self, x_TD: torch.Tensor, scores_TK: torch.Tensor, ids_TK: torch.Tensor) -> torch.Tensor:
        """(T, D) from tokens, affinities and choices."""
        weights = [local(weight).to(x_TD.dtype) for weight in (self.w1_EFD, self.w2_EDF, self.w3_EFD)]
        options = ("silu", torch_ops.GPT_OSS_LIMIT, torch_ops.block_of(weights[1]))
        return torch_ops.experts_forward(x_TD, scores_TK, ids_TK, *weights, None, None, None, *options)[0]


class NkiClampedExperts(GptOssGroupedExperts):
    """GPT-OSS's experts: gate and up in alternating rows, biases, the clamped SwiGLU."""

    @dataclass(kw_only=True, slots=True)
    class Config(GptOssGroupedExperts.Config):
        pass

    forward = NkiExperts.forward

    def compute(self, x_TD: torch.Tensor, scores_TK: torch.Tensor, ids_TK: torch.Tensor) -> torch.Tensor:
        """(T, D) from tokens, affinities and choices."""
        held = (self.mlp1_weight_EGD, self.mlp2_weight_EDF, self.mlp1_bias_EG, self.mlp2_bias_ED)
        w1, w2, b1, b2 = (local(tensor).to(x_TD.dtype) for tensor in held)
        options = ("clamped", self.swiglu_limit, torch_ops.block_of(w2))
        return torch_ops.experts_forward(x_TD, scores_TK, ids_TK, w1, w2, None, b1, b2, None, *options)[0]


class NkiRoutedExperts(RoutedExperts):
    """Dispatch, experts and combine in one kernel; with expert parallelism torchtitan's exchange around the experts."""

    @dataclass(kw_only=True, slots=True)
    class Config(RoutedExperts.Config):
        pass

    def forward(
        self,
        x_BLD: torch.Tensor,
        topk_scores_BLK: torch.Tensor,
        topk_expert_ids_BLK: torch.Tensor,
        num_local_tokens_per_expert_E: torch.Tensor,
    ) -> torch.Tensor:
        """(B, L, D) from the router's scores and choices (B, L, K)."""
        if getattr(self.token_dispatcher, "ep_mesh", None) is not None:
            return super().forward(x_BLD, topk_scores_BLK, topk_expert_ids_BLK, num_local_tokens_per_expert_E)
        flat = (tensor.flatten(0, 1) for tensor in (x_BLD, topk_scores_BLK, topk_expert_ids_BLK))
        return self.inner_experts.compute(*flat).view(x_BLD.shape)
