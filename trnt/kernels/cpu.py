"""The experts on CPU in the tensors' own dtype, as custom operators, so that torch.compile takes them whole.

`trnt::grouped_swiglu` runs them over contiguous slices of tokens sorted by expert. Nothing here loops over tokens or
casts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F


def slices(counts: list[int], wanted: range | None = None) -> Iterator[tuple[int, slice]]:
    """(expert, its rows) for every expert that has any, or for those in `wanted`."""
    begin = 0
    for expert, count in enumerate(counts):
        if count and (wanted is None or expert in wanted):
            yield expert, slice(begin, begin + count)
        begin += count


@torch.library.custom_op("trnt::grouped_swiglu", mutates_args=())
def grouped_swiglu(
    x_RD: torch.Tensor, w1_EFD: torch.Tensor, w2_EDF: torch.Tensor, w3_EFD: torch.Tensor, counts_E: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y = (silu(x w1^T) * (x w3^T)) w2^T per expert: returns y (R, D) and, for the backward, g and u (R, F).

    counts_E: integers, tokens of each expert; they must add up to R. Experts without tokens cost nothing.
    Raises ValueError when the counts do not fit.
    """
    counts = counts_E.tolist()
    rows, width = x_RD.shape[0], w1_EFD.shape[1]
    if sum(counts) != rows or len(counts) != w1_EFD.shape[0]:
        raise ValueError(
            f"{len(counts)} experts with {sum(counts)} tokens, but {w1_EFD.shape[0]} weights and {rows} rows"
        )
    g_RF, u_RF = x_RD.new_empty(rows, width), x_RD.new_empty(rows, width)
    y_RD = torch.empty_like(x_RD, memory_format=torch.contiguous_format)
    for e, s in slices(counts):
        torch.mm(x_RD[s], w1_EFD[e].T, out=g_RF[s])
        torch.mm(x_RD[s], w3_EFD[e].T, out=u_RF[s])
    h_RF = F.silu(g_RF).mul_(u_RF)
    for e, s in slices(counts):
        torch.mm(h_RF[s], w2_EDF[e].T, out=y_RD[s])
    return y_RD, g_RF, u_RF


@grouped_swiglu.register_fake
def _(x_RD: Any, w1_EFD: Any, w2_EDF: Any, w3_EFD: Any, counts_E: Any) -> Any:
    hidden = x_RD.new_empty(x_RD.shape[0], w1_EFD.shape[1])
    return torch.empty_like(x_RD, memory_format=torch.contiguous_format), hidden, torch.empty_like(hidden)


@torch.library.custom_op("trnt::grouped_swiglu_backward", mutates_args=())
def grouped_swiglu_backward(
    dy_RD: torch.Tensor,
    x_RD: torch.Tensor,
    w1_EFD: torch.Tensor,
    w2_EDF: torch.Tensor,
    w3_EFD: torch.Tensor,
    g_RF: torch.Tensor,
    u_RF: torch.Tensor,
    counts_E: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x, w1, w2, w3. Experts without tokens get zeros, not nothing."""
    counts = counts_E.tolist()
    empty = [e for e, count in enumerate(counts) if not count]
    dw1_EFD, dw2_EDF, dw3_EFD = (
        torch.empty_like(w, memory_format=torch.contiguous_format) for w in (w1_EFD, w2_EDF, w3_EFD)
    )
    for dw in (dw1_EFD, dw2_EDF, dw3_EFD):
        for e in empty:
            dw[e].zero_()
    dx_RD = torch.empty_like(x_RD, memory_format=torch.contiguous_format)
    dh_RF = torch.empty_like(g_RF)
    sigmoid = torch.sigmoid(g_RF)
    silu = g_RF * sigmoid
    h_RF = silu * u_RF
    for e, s in slices(counts):
        torch.mm(dy_RD[s], w2_EDF[e], out=dh_RF[s])
        torch.mm(dy_RD[s].T, h_RF[s], out=dw2_EDF[e])
    du_RF = silu.mul(dh_RF)
    # d silu(g) / dg = sigmoid + silu (1 - sigmoid)
    dg_RF = torch.rsub(sigmoid, 1).mul_(silu).add_(sigmoid).mul_(dh_RF).mul_(u_RF)
    for e, s in slices(counts):
        torch.mm(dg_RF[s].T, x_RD[s], out=dw1_EFD[e])
        torch.mm(du_RF[s].T, x_RD[s], out=dw3_EFD[e])
        torch.mm(dg_RF[s], w1_EFD[e], out=dx_RD[s])
        dx_RD[s].addmm_(du_RF[s], w3_EFD[e])
    return dx_RD, dw1_EFD, dw2_EDF, dw3_EFD


@grouped_swiglu_backward.register_fake
def _(dy_RD: Any, x_RD: Any, w1_EFD: Any, w2_EDF: Any, w3_EFD: Any, g_RF: Any, u_RF: Any, counts_E: Any) -> Any:
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x_RD, w1_EFD, w2_EDF, w3_EFD))


def _save_experts(ctx: Any, inputs: Any, output: Any) -> None:
    x_RD, w1_EFD, w2_EDF, w3_EFD, counts_E = inputs
    _, g_RF, u_RF = output
    ctx.save_for_backward(x_RD, w1_EFD, w2_EDF, w3_EFD, g_RF, u_RF, counts_E)
    ctx.set_materialize_grads(False)


def _experts_backward(ctx: Any, dy_RD: Any, dg: Any, du: Any) -> Any:
    if dy_RD is None:
        return None, None, None, None, None
    x_RD, w1_EFD, w2_EDF, w3_EFD, g_RF, u_RF, counts_E = ctx.saved_tensors
    grads = grouped_swiglu_backward(dy_RD.contiguous(), x_RD, w1_EFD, w2_EDF, w3_EFD, g_RF, u_RF, counts_E)
    return (*grads, None)


grouped_swiglu.register_autograd(_experts_backward, setup_context=_save_experts)


@torch.library.custom_op("trnt::grouped_linear", mutates_args=())
def grouped_linear(x_RK: torch.Tensor, weight_ENK: torch.Tensor, counts_E: torch.Tensor) -> torch.Tensor:
    """x W^T of each expert for its own rows, (R, N); rows behind the last expert's are padding, and zero."""
    y_RN = x_RK.new_empty(x_RK.shape[0], weight_ENK.shape[1])
    end = 0
    for e, s in slices(counts_E.tolist()):
        torch.mm(x_RK[s], weight_ENK[e].T, out=y_RN[s])
        end = s.stop
    y_RN[end:].zero_()
    return y_RN


@grouped_linear.register_fake
def _(x_RK: Any, weight_ENK: Any, counts_E: Any) -> Any:
    return x_RK.new_empty(x_RK.shape[0], weight_ENK.shape[1])


@torch.library.custom_op("trnt::grouped_linear_backward", mutates_args=())
def grouped_linear_backward(
    dy_RN: torch.Tensor, x_RK: torch.Tensor, weight_ENK: torch.Tensor, counts_E: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x and of the weights; experts without rows get zeros."""
    dx_RK = torch.zeros_like(x_RK, memory_format=torch.contiguous_format)
    dw_ENK = torch.zeros_like(weight_ENK, memory_format=torch.contiguous_format)
    for e, s in slices(counts_E.tolist()):
        torch.mm(dy_RN[s], weight_ENK[e], out=dx_RK[s])
        torch.mm(dy_RN[s].T, x_RK[s], out=dw_ENK[e])
    return dx_RK, dw_ENK


@grouped_linear_backward.register_fake
def _(dy_RN: Any, x_RK: Any, weight_ENK: Any, counts_E: Any) -> Any:
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x_RK, weight_ENK))


def _save_linear(ctx: Any, inputs: Any, output: Any) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _linear_backward(ctx: Any, dy_RN: Any) -> Any:
    return (*grouped_linear_backward(dy_RN.contiguous(), *ctx.saved_tensors), None)


grouped_linear.register_autograd(_linear_backward, setup_context=_save_linear)
