"""Routing, experts and combining as one CPU kernel: no copy of the tokens per choice ever exists.

Sorting tokens by expert makes top_k copies of every token, and so do the results before they are added up. Here each
expert gathers its tokens into a buffer that fits the cache, and adds its results where they belong. The router's score
is applied to the hidden values before the second matmul: (s h) W2^T = s (h W2^T), so that its gradient needs the hidden
values only. What is kept for the backward: the tokens, and gate and up (R, F).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from trnt import device

device.ensure()

from torch.distributed.tensor import DTensor
from torchtitan.models.common.moe import RoutedExperts

from trnt.kernels import grads, matmul, threads
from trnt.kernels.cpu import slices

LEAST_SHARED = 1 << 17  # elements of one expert's weight


def workers(weight_E: torch.Tensor) -> int:
    """Threads to share the experts among: one where a product is too small to be worth it, as measured."""
    return torch.get_num_threads() if weight_E[0].numel() >= LEAST_SHARED else 1


def add_up(outs: dict[range, torch.Tensor]) -> torch.Tensor:
    """The sum of all threads' results, in the order of their shares."""
    first, *rest = outs.values()
    for other in rest:
        first += other
    return first


def target(weight: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, bool, grads.Owner | None]:
    """(where the gradient goes, whether to overwrite, its mark where it is owned). Idle experts' parts are zero."""
    mark = grads.owner(weight) if grads.usable(weight) else None
    if mark is not None:
        out, overwrite = grads.buffer(weight)
    else:
        out, overwrite = torch.empty_like(weight, memory_format=torch.contiguous_format), True
    zero = mark.zero if mark is not None else set()
    for e, count in enumerate(counts):
        if count:
            zero.discard(e)
        elif overwrite and e not in zero:
            out[e].zero_()
            zero.add(e)
    return out, overwrite, mark


def by_expert(ids_TK: torch.Tensor, experts: int) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """(rows of each expert, each row's place among the choices, its token), (R,): rows are sorted by expert."""
    order_R = torch.argsort(ids_TK.flatten(), stable=True)
    return torch.bincount(ids_TK.flatten(), minlength=experts).tolist(), order_R, order_R // ids_TK.shape[1]


class RoutedSwiGLU(torch.autograd.Function):
    """sum over k of s_k expert_k(x), in the tensors' own dtype. Experts without tokens cost nothing."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TD: torch.Tensor,
        scores_TK: torch.Tensor,
        ids_TK: torch.Tensor,
        w1_EFD: torch.Tensor,
        w2_EDF: torch.Tensor,
        w3_EFD: torch.Tensor,
    ) -> torch.Tensor:
        """(T, D). scores_TK may be of a wider dtype than x; ids_TK: integers below E, no expert twice for a token."""
        counts, order_R, token_R = by_expert(ids_TK, len(w1_EFD))
        scores_R1 = scores_TK.flatten()[order_R, None].to(x_TD.dtype)
        g_RF, u_RF = (x_TD.new_empty(len(order_R), w1_EFD.shape[1]) for _ in range(2))
        parts = threads.shares(counts, workers(w1_EFD))
        outs = {part: torch.zeros_like(x_TD, memory_format=torch.contiguous_format) for part in parts}

        def work(part: range) -> None:
            most = max(counts[part.start : part.stop])
            x, h = (x_TD.new_empty(most, width) for width in (x_TD.shape[1], w1_EFD.shape[1]))
            for e, s in slices(counts, part):
                n = s.stop - s.start
                torch.index_select(x_TD, 0, token_R[s], out=x[:n])
                g_RF[s] = matmul.times_transposed(x[:n], w1_EFD[e])
                u_RF[s] = matmul.times_transposed(x[:n], w3_EFD[e])
                torch.mul(F.silu(g_RF[s]), u_RF[s], out=h[:n]).mul_(scores_R1[s])
                outs[part].index_add_(0, token_R[s], matmul.times_transposed(h[:n], w2_EDF[e]))

        threads.spread(parts, work)
        out_TD = add_up(outs)
        ctx.counts, ctx.score_dtype = counts, scores_TK.dtype
        ctx.weights = (w1_EFD, w2_EDF, w3_EFD)  # the parameters themselves: recomputation hands back copies
        ctx.save_for_backward(x_TD, scores_R1, order_R, token_R, g_RF, u_RF)
        return out_TD

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        x_TD, scores_R1, order_R, token_R, g_RF, u_RF = ctx.saved_tensors
        w1_EFD, w2_EDF, w3_EFD = ctx.weights
        do_TD = grad[0]
        targets = [target(weight, ctx.counts) for weight in (w1_EFD, w2_EDF, w3_EFD)]
        (dw1, new1, mark1), (dw2, new2, mark2), (dw3, new3, mark3) = targets
        dscores_R = x_TD.new_empty(len(order_R))
        parts = threads.shares(ctx.counts, workers(w1_EFD))
        outs = {part: torch.zeros_like(x_TD, memory_format=torch.contiguous_format) for part in parts}

        def work(part: range) -> None:
            most = max(ctx.counts[part.start : part.stop])
            x, dy = (x_TD.new_empty(most, x_TD.shape[1]) for _ in range(2))
            for e, s in slices(ctx.counts, part):
                n = s.stop - s.start
                torch.index_select(x_TD, 0, token_R[s], out=x[:n])
                torch.index_select(do_TD, 0, token_R[s], out=dy[:n])
                sigmoid = torch.sigmoid(g_RF[s])
                silu = g_RF[s] * sigmoid
                h = silu * u_RF[s]
                dh = matmul.times(dy[:n], w2_EDF[e])
                torch.sum(dh * h, 1, out=dscores_R[s])
                grads.put_product(dw2[e], dy[:n], h.mul_(scores_R1[s]), overwrite=new2, mark=mark2)
                dh.mul_(scores_R1[s])
                du = silu.mul(dh)
                # d silu(g) / dg = sigmoid + silu (1 - sigmoid)
                dg = torch.rsub(sigmoid, 1).mul_(silu).add_(sigmoid).mul_(dh).mul_(u_RF[s])
                grads.put_product(dw1[e], dg, x[:n], overwrite=new1, mark=mark1)
                grads.put_product(dw3[e], du, x[:n], overwrite=new3, mark=mark3)
                dx = matmul.times(dg, w1_EFD[e]).add_(matmul.times(du, w3_EFD[e]))
                outs[part].index_add_(0, token_R[s], dx)

        threads.spread(parts, work)
        dx_TD = add_up(outs)
        dscores = torch.empty_like(dscores_R).index_copy_(0, order_R, dscores_R).view(len(x_TD), -1)
        return dx_TD, dscores.to(ctx.score_dtype), None, *(out if mark is None else None for out, _, mark in targets)


class CpuRoutedExperts(RoutedExperts):
    """torchtitan's dispatch, experts and combine; on CPU without expert parallelism the experts' `compute` does all."""

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
        alone = getattr(self.token_dispatcher, "ep_mesh", None) is None
        alone = alone and not any(isinstance(weight, DTensor) for weight in self.inner_experts.parameters())
        if x_BLD.device.type != "cpu" or not alone or torch.compiler.is_compiling():
            return super().forward(x_BLD, topk_scores_BLK, topk_expert_ids_BLK, num_local_tokens_per_expert_E)
        flat = (tensor.flatten(0, 1) for tensor in (x_BLD, topk_scores_BLK, topk_expert_ids_BLK))
        return self.inner_experts.compute(*flat).view(x_BLD.shape)
