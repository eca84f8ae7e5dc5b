"""Sorting tokens by expert and back, in torchtitan's dispatcher seam, the same to the bit every time.

torchtitan indexes the tokens and adds the results back by index. Their gradients are sums by index too, which torch
adds up on CPU in whatever order its threads come. Here each sum is over the top_k rows of one token, found through
the inverse of the sorting permutation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trnt import device

device.ensure()

from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher, LocalDispatchMetadata


class GatherTokens(torch.autograd.Function):
    """Tokens (T, D) -> one row per choice, sorted by expert (T x top_k, D)."""

    @staticmethod
    def forward(ctx: Any, x_TD: torch.Tensor, order_N: torch.Tensor, inverse_N: torch.Tensor, top_k: int) -> Any:
        ctx.save_for_backward(inverse_N)
        ctx.top_k = top_k
        return x_TD.index_select(0, order_N // top_k)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (inverse_N,) = ctx.saved_tensors
        by_token = grads[0].index_select(0, inverse_N).unflatten(0, (-1, ctx.top_k))
        return by_token.sum(1), None, None, None


class Permute(torch.autograd.Function):
    """Rows (N, D) in another order; the gradient is the inverse order, not a sum by index."""

    @staticmethod
    def forward(ctx: Any, x_ND: torch.Tensor, order_N: torch.Tensor, inverse_N: torch.Tensor) -> Any:
        ctx.save_for_backward(inverse_N)
        return x_ND.index_select(0, order_N)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (inverse_N,) = ctx.saved_tensors
        return grads[0].index_select(0, inverse_N), None, None


@dataclass(frozen=True, kw_only=True)
class Sorted(LocalDispatchMetadata):
    """What `combine` needs to bring the rows back."""

    order_N: torch.Tensor
    inverse_N: torch.Tensor
    topk_scores_TK: torch.Tensor


class Dispatcher(AllToAllTokenDispatcher):
    """torchtitan's dispatcher; without expert parallelism both ways are gathers. With it, torchtitan's own runs."""

    @dataclass(kw_only=True, slots=True)
    class Config(AllToAllTokenDispatcher.Config):
        pass

    def dispatch(
        self,
        x_TD: torch.Tensor,
        topk_scores_TK: torch.Tensor,
        topk_expert_ids_TK: torch.Tensor,
        num_local_tokens_per_expert_E: torch.Tensor,
    ) -> Any:
        """(rows sorted by expert (T x top_k, D), tokens of each expert (E,), what `combine` needs)."""
        if self.ep_mesh is not None:
            return super().dispatch(x_TD, topk_scores_TK, topk_expert_ids_TK, num_local_tokens_per_expert_E)
        order_N = torch.argsort(topk_expert_ids_TK.flatten(), stable=True)
        inverse_N = torch.empty_like(order_N).scatter_(0, order_N, torch.arange(len(order_N), device=order_N.device))
        metadata = Sorted(
            token_indices_experts_sorted_N=order_N,
            topk_scores_experts_sorted_N=order_N,
            order_N=order_N,
            inverse_N=inverse_N,
            topk_scores_TK=topk_scores_TK,
        )
        rows_ND = GatherTokens.apply(x_TD, order_N, inverse_N, self.top_k)
        return rows_ND, num_local_tokens_per_expert_E, metadata

    def combine(self, routed_output_RD: torch.Tensor, metadata: Any, x_TD: torch.Tensor) -> torch.Tensor:
        """(T, D): each token's top_k results, weighted by its scores; computed in the scores' dtype."""
        if not isinstance(metadata, Sorted):
            return super().combine(routed_output_RD, metadata, x_TD)
        y_ND = Permute.apply(routed_output_RD, metadata.inverse_N, metadata.order_N)
        scores_TK = metadata.topk_scores_TK
        y_TKD = y_ND.unflatten(0, (-1, self.top_k)).to(scores_TK.dtype)
        return torch.bmm(scores_TK.unsqueeze(1), y_TKD).squeeze(1).to(x_TD.dtype)
