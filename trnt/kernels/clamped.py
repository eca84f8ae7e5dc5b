"""GPT-OSS's experts on CPU: gate and up in alternating rows, biases, and the clamped SwiGLU.

h = g sigmoid(1.702 g) (u + 1) with g at most `limit` and u within +-limit; gradients stop where a clamp is active. The
rest is as in `kernels/routed.py`: each expert gathers its tokens, and adds its results where they belong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from trnt import device

device.ensure()

from torchtitan.models.common.linear import ScaledBiasRowwiseLinear
from torchtitan.models.gpt_oss.model import Attention
from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts, ScaleBiasForward, swiglu

from trnt.kernels import cpu, grads, matmul, threads
from trnt.kernels.attention import Sinks
from trnt.kernels.cpu import slices
from trnt.kernels.routed import add_up, by_expert, target, workers
from trnt.parallel.parts import local

ALPHA = 1.702


def gated(gu_RG: torch.Tensor, limit: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(g, u, sigmoid(ALPHA g)), each (R, F), clamped."""
    g_RF, u_RF = gu_RG[:, ::2].clamp(max=limit), gu_RG[:, 1::2].clamp(-limit, limit)
    return g_RF, u_RF, torch.sigmoid(ALPHA * g_RF)


class RoutedClamped(torch.autograd.Function):
    """sum over k of s_k expert_k(x), in the tensors' own dtype. Experts without tokens cost nothing."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TD: torch.Tensor,
        scores_TK: torch.Tensor,
        ids_TK: torch.Tensor,
        w1_EGD: torch.Tensor,
        b1_EG: torch.Tensor,
        w2_EDF: torch.Tensor,
        b2_ED: torch.Tensor,
        limit: float,
    ) -> torch.Tensor:
        """(T, D). scores_TK may be of a wider dtype than x; ids_TK: integers below E, no expert twice for a token."""
        counts, order_R, token_R = by_expert(ids_TK, len(w1_EGD))
        scores_R1 = scores_TK.flatten()[order_R, None].to(x_TD.dtype)
        gu_RG = x_TD.new_empty(len(order_R), w1_EGD.shape[1])
        parts = threads.shares(counts, workers(w1_EGD))
        outs = {part: torch.zeros_like(x_TD, memory_format=torch.contiguous_format) for part in parts}

        def work(part: range) -> None:
            for e, s in slices(counts, part):
                x = x_TD.index_select(0, token_R[s])
                torch.add(matmul.times_transposed(x, w1_EGD[e]), b1_EG[e], out=gu_RG[s])
                g, u, sigmoid = gated(gu_RG[s], limit)
                h = sigmoid.mul_(g).mul_(u.add_(1)).mul_(scores_R1[s])
                y = matmul.times_transposed(h, w2_EDF[e]).addcmul_(scores_R1[s], b2_ED[e])
                outs[part].index_add_(0, token_R[s], y)

        threads.spread(parts, work)
        ctx.counts, ctx.score_dtype, ctx.limit = counts, scores_TK.dtype, limit
        ctx.weights = (w1_EGD, w2_EDF)  # the parameters themselves: recomputation hands back copies
        ctx.save_for_backward(x_TD, scores_R1, order_R, token_R, gu_RG, b2_ED)
        ctx.bias = (b1_EG.shape, b1_EG.dtype)
        return add_up(outs)

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        x_TD, scores_R1, order_R, token_R, gu_RG, b2_ED = ctx.saved_tensors
        w1_EGD, w2_EDF = ctx.weights
        do_TD = grad[0]
        (dw1, new1, mark1), (dw2, new2, mark2) = (target(weight, ctx.counts) for weight in ctx.weights)
        db1_EG, db2_ED = x_TD.new_zeros(ctx.bias[0], dtype=ctx.bias[1]), torch.zeros_like(b2_ED)
        dscores_R = x_TD.new_empty(len(order_R))
        parts = threads.shares(ctx.counts, workers(w1_EGD))
        outs = {part: torch.zeros_like(x_TD, memory_format=torch.contiguous_format) for part in parts}

        def work(part: range) -> None:
            for e, s in slices(ctx.counts, part):
                x, dy = x_TD.index_select(0, token_R[s]), do_TD.index_select(0, token_R[s])
                raw = gu_RG[s]
                g, u, sigmoid = gated(raw, ctx.limit)
                glu, up = g * sigmoid, u.add_(1)
                h = glu * up
                dh = matmul.times(dy, w2_EDF[e])
                torch.sum(dh * h, 1, out=dscores_R[s])
                dscores_R[s].addmv_(dy, b2_ED[e])
                grads.put_product(dw2[e], dy, h.mul_(scores_R1[s]), overwrite=new2, mark=mark2)
                db2_ED[e] = scores_R1[s, 0] @ dy
                dh.mul_(scores_R1[s])
                dgu = torch.empty_like(raw)
                # d (g s(a g)) / dg = s (1 + a g (1 - s)), where the clamp lets it pass
                slope = torch.rsub(sigmoid, 1).mul_(g).mul_(ALPHA).add_(1).mul_(sigmoid)
                torch.mul(slope.mul_(dh).mul_(up), raw[:, ::2] <= ctx.limit, out=dgu[:, ::2])
                torch.mul(glu.mul_(dh), raw[:, 1::2].abs() <= ctx.limit, out=dgu[:, 1::2])
                db1_EG[e] = dgu.sum(0)
                grads.put_product(dw1[e], dgu, x, overwrite=new1, mark=mark1)
                outs[part].index_add_(0, token_R[s], matmul.times(dgu, w1_EGD[e]))

        threads.spread(parts, work)
        dscores = torch.empty_like(dscores_R).index_copy_(0, order_R, dscores_R).view(len(x_TD), -1)
        given1, given2 = (out if mark is None else None for out, mark in ((dw1, mark1), (dw2, mark2)))
        return add_up(outs), dscores.to(ctx.score_dtype), None, given1, db1_EG, given2, db2_ED, None


class ClampedExperts(GptOssGroupedExperts):
    """GPT-OSS's experts in the tensors' own dtype on CPU; torchtitan's own, in bf16, elsewhere."""

    @dataclass(kw_only=True, slots=True)
    class Config(GptOssGroupedExperts.Config):
        pass

    def large_weights(self) -> tuple[torch.Tensor, ...]:
        """The weights whose gradients the kernel writes in place."""
        return self.mlp1_weight_EGD, self.mlp2_weight_EDF

    def compute(self, x_TD: torch.Tensor, scores_TK: torch.Tensor, ids_TK: torch.Tensor) -> torch.Tensor:
        """(T, D) from tokens, scores and choices of one CPU process."""
        weights = (self.mlp1_weight_EGD, self.mlp1_bias_EG, self.mlp2_weight_EDF, self.mlp2_bias_ED)
        return RoutedClamped.apply(x_TD, scores_TK, ids_TK, *weights, self.swiglu_limit)

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        """(R, D) from tokens (R, D) sorted by expert and their counts (E,); for graphs and for expert parallelism."""
        if x_RD.device.type != "cpu":
            return super().forward(x_RD, num_tokens_per_expert_E)
        held = (self.mlp1_weight_EGD, self.mlp1_bias_EG, self.mlp2_weight_EDF, self.mlp2_bias_ED)
        w1_EGD, b1_EG, w2_EDF, b2_ED = map(local, held)
        ends_E = num_tokens_per_expert_E.cumsum(0, dtype=torch.int32)
        number_R = torch.arange(len(x_RD), device=x_RD.device, dtype=torch.int32)
        expert_R = torch.searchsorted(ends_E, number_R, right=True).clamp(max=len(b1_EG) - 1)
        gu_RG = cpu.grouped_linear(x_RD, w1_EGD, num_tokens_per_expert_E) + b1_EG[expert_R]
        h_RF = swiglu(gu_RG, limit=self.swiglu_limit)
        y_RD = cpu.grouped_linear(h_RF, w2_EDF, num_tokens_per_expert_E)
        return y_RD + ScaleBiasForward.apply(b2_ED[expert_R], tensor_parallel(held[0]), y_RD.dtype)


def tensor_parallel(weight: torch.Tensor) -> int:
    """Over how many processes each expert's width is split: the down bias is added once, not by each."""
    mesh = getattr(weight, "device_mesh", None)
    names = mesh.mesh_dim_names or () if mesh is not None else ()
    return mesh.size(names.index("tp")) if mesh is not None and "tp" in names else 1


class RowwiseLinear(ScaledBiasRowwiseLinear):
    """GPT-OSS's output projection, whose bias learns as fast with tensor parallelism as without.

    torchtitan 0.3.0 divides the bias by the number of processes, so that their sum holds it once, and with it the
    bias's gradient, which is whole on each of them.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(ScaledBiasRowwiseLinear.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., F), this process's part of the sum."""
        weight, bias = local(self.weight), local(self.bias)
        return F.linear(input, weight, ScaleBiasForward.apply(bias, self.tp_degree, bias.dtype))


class SinkAttention(Attention):
    """GPT-OSS's attention, which hands its sinks to the kernel, not a function of log-sum-exps."""

    @dataclass(kw_only=True, slots=True)
    class Config(Attention.Config):
        pass

    @property
    def _apply_sinks(self) -> Sinks:
        return Sinks(self.sinks)
