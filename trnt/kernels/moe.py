"""The experts and the router, in torchtitan's seams, with its parameter names and shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trnt import device

device.ensure()

from torchtitan.models.common.moe import GroupedExperts, TokenChoiceTopKRouter

from trnt.kernels import cpu
from trnt.kernels.routed import RoutedSwiGLU
from trnt.parallel.parts import local


class Experts(GroupedExperts):
    """SwiGLU experts over tokens sorted by expert, in the tensors' own dtype on CPU.

    torchtitan's own casts to bf16 whatever the parameters are, which a CPU computes at a hundredth of its speed.
    Elsewhere torchtitan's grouped matmul runs.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def large_weights(self) -> tuple[torch.Tensor, ...]:
        """The weights whose gradients the kernel writes in place."""
        return self.w1_EFD, self.w2_EDF, self.w3_EFD

    def compute(self, x_TD: torch.Tensor, scores_TK: torch.Tensor, ids_TK: torch.Tensor) -> torch.Tensor:
        """(T, D) from tokens, scores and choices of one CPU process."""
        return RoutedSwiGLU.apply(x_TD, scores_TK, ids_TK, *self.large_weights())

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        """(R, D) from tokens (R, D) sorted by expert and their counts (E,)."""
        if x_RD.device.type != "cpu":
            return super().forward(x_RD, num_tokens_per_expert_E)
        weights = [local(weight) for weight in self.large_weights()]
        y_RD, _, _ = cpu.grouped_swiglu(x_RD, *weights, num_tokens_per_expert_E)
        return y_RD


class AddLoss(torch.autograd.Function):
    """Passes the scores through and adds `weight * loss` to what is minimised, as Megatron's MoEAuxLossAutoScaler."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, loss: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.weight = weight
        ctx.save_for_backward(loss)
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (loss,) = ctx.saved_tensors
        return grads[0], torch.full_like(loss, ctx.weight), None


class Router(TokenChoiceTopKRouter):
    """torchtitan's router with the load-balancing loss of the Switch Transformer, as transformers computes it."""

    @dataclass(kw_only=True, slots=True)
    class Config(TokenChoiceTopKRouter.Config):
        aux_coeff: float = 0.0
        """Weight of the balance loss beside the language-model loss; 0 leaves it out."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.aux_coeff = config.aux_coeff
        self.aux_weight = 1.0  # the trainer sets 1 / (forward passes of a step)
        self.last_aux: torch.Tensor | None = None

    def forward(
        self, x_BLD: torch.Tensor, expert_bias_E: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scores_BLK, ids_BLK, all_BLE = super().forward(x_BLD, expert_bias_E)
        if self.aux_coeff and torch.is_grad_enabled():
            loss = balance_loss(all_BLE, ids_BLK)
            self.last_aux = loss.detach()
            scores_BLK = AddLoss.apply(scores_BLK, loss, self.aux_coeff * self.aux_weight)
        return scores_BLK, ids_BLK, all_BLE


def balance_loss(scores_BLE: torch.Tensor, ids_BLK: torch.Tensor) -> torch.Tensor:
    """E * sum over experts of (share of tokens that chose it) * (mean router probability).

    Equations 4 to 6 of the Switch Transformer (arXiv 2101.03961), for top_k choices as in transformers'
    `load_balancing_loss_func`: top_k when experts are used evenly.
    """
    num_experts = scores_BLE.shape[-1]
    chosen = torch.zeros_like(scores_BLE).scatter_(-1, ids_BLK, 1.0)
    share_E = chosen.flatten(0, 1).mean(0)
    probability_E = scores_BLE.flatten(0, 1).mean(0)
    return num_experts * (share_E * probability_E).sum()
