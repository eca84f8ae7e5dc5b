"""The kernels as torch operators: `trnt::route`, `trnt::experts_forward`, `trnt::experts_backward`.

On a Neuron device the body runs the compiled kernel, through `torch_neuronx.nki_op` where that exists; on CPU tensors
the interpreter runs it. Shapes never depend on data. Not run on hardware.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from trnt.errors import TrntError
from trnt.kernels import hardware
from trnt.kernels.choose import importable
from trnt.kernels.nki import api
from trnt.kernels.nki.experts_backward import experts_backward as backward_kernel
from trnt.kernels.nki.experts_forward import experts_forward as forward_kernel
from trnt.kernels.nki.layout import Grouped, Layout, arrange, grouped
from trnt.kernels.nki.plan import P, block_rows, tiles, together
from trnt.kernels.nki.route import route as route_kernel

GPT_OSS_LIMIT = 7.0


def operator(name: str) -> Callable[..., Any]:
    """How an operator is registered here: by TorchNeuron's `nki_op`, or as a plain custom operator."""
    if api.real() and importable("torch_neuronx"):
        import torch_neuronx

        if hasattr(torch_neuronx, "nki_op"):
            return torch_neuronx.nki_op(name, mutates_args={})
    return torch.library.custom_op(name, mutates_args=())


def launch(kernel: Any, *args: Any, **options: Any) -> Any:
    """Run a kernel on its tensors' device. Raises TrntError for an LNC that the kernels do not know."""
    device = next(a for a in args if isinstance(a, torch.Tensor)).device
    if device.type != "neuron":
        try:
            return api.nki.simulate(kernel)(*args, **options)
        except AssertionError as error:
            raise TrntError(f"the NKI kernel takes no such sizes: {error}", "use --kernels torch") from error
    if os.environ.get("NEURON_LOGICAL_NC_CONFIG", "2") != "1":
        raise TrntError(
            "the NKI kernels run on one physical core, and logical cores of two are set",
            "export NEURON_LOGICAL_NC_CONFIG=1, or use --kernels torch",
        )
    import torch_neuronx

    wrap = getattr(torch_neuronx, "wrap_nki", None)
    return (kernel if wrap is None else wrap(kernel))(*args, **options)


def block_of(w2_EDF: torch.Tensor) -> int:
    """Rows of a block for experts of these sizes and dtype."""
    return block_rows(w2_EDF.shape[1], w2_EDF.shape[2], w2_EDF.itemsize, hardware.present().sbuf_usable)


def for_backward(layout: Layout, w2_EDF: torch.Tensor) -> Grouped:
    """The layout as the backward takes it for experts of these sizes and dtype."""
    (_, D, F), block = w2_EDF.shape, layout.rows_NB3.shape[1]
    return grouped(layout, together(D, F, block, w2_EDF.itemsize, hardware.present().sbuf_usable))


@operator("trnt::route")
def route(
    logits_TE: torch.Tensor,
    bias_E: torch.Tensor | None,
    top_k: int,
    score: str,
    normalise: bool,
    scale: float,
    groups: int,
    limited: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(affinity_TK fp32, ids_TK int64) from logits (T, E) fp32. See `route.py` for `score`; gradients go to the logits.

    bias_E shifts the choice, not the affinity. groups, limited: 0, or DeepSeek-V3's group-limited routing.
    """
    bias_1E = None if bias_E is None else bias_E.float().reshape(1, -1)
    options = {"top_k": top_k, "score": score, "normalise": normalise, "scale": scale, "groups": groups}
    found = launch(
        route_kernel, logits_TE.float().contiguous(), bias_1E, **options, limited=limited, has_bias=bias_E is not None
    )
    return found[0], found[1].to(torch.int64)


def affinity_gradient(
    grad_TK: torch.Tensor, logits_TE: torch.Tensor, ids_TK: torch.Tensor, score: str, normalise: bool, scale: float
) -> torch.Tensor:
    """The gradient of `route`'s affinities with respect to its logits; the choice itself has none."""
    grad_TK = grad_TK * scale
    if score == "softmax_topk":
        a_TK = logits_TE.gather(1, ids_TK).softmax(1)
        chosen = a_TK * (grad_TK - (grad_TK * a_TK).sum(1, keepdim=True))
        return torch.zeros_like(logits_TE).scatter(1, ids_TK, chosen)
    p_TE = logits_TE.softmax(1) if score == "softmax" else logits_TE.sigmoid()
    if normalise:
        s_TK = p_TE.gather(1, ids_TK)
        total = s_TK.sum(1, keepdim=True).clamp(min=1e-20)
        grad_TK = (grad_TK - (grad_TK * s_TK / total).sum(1, keepdim=True)) / total
    dp_TE = torch.zeros_like(p_TE).scatter(1, ids_TK, grad_TK)
    if score == "sigmoid":
        return dp_TE * p_TE * (1 - p_TE)
    return p_TE * (dp_TE - (dp_TE * p_TE).sum(1, keepdim=True))


@operator("trnt::experts_forward")
def experts_forward(
    x_TD: torch.Tensor,
    scores_TK: torch.Tensor,
    ids_TK: torch.Tensor,
    w1_EFD: torch.Tensor,
    w2_EDF: torch.Tensor,
    w3_EFD: torch.Tensor | None,
    b1_EF: torch.Tensor | None,
    b2_ED: torch.Tensor | None,
    b3_EF: torch.Tensor | None,
    act: str,
    limit: float,
    block: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out_TD, what the backward needs): sum over k of scores[t, k] * expert[ids[t, k]](x[t]).

    x and the weights in one dtype, bf16 or fp32; ids (T, K) below E, no expert twice for a token. w3 None: w1 holds
    gate and up in alternating rows (E, 2F, D), b1 likewise. act "silu", or "clamped" with `limit` (GPT-OSS).
    """
    check(x_TD, w1_EFD, w2_EDF, w3_EFD)
    layout = arrange(scores_TK, ids_TK, w2_EDF.shape[0], block)
    tensors = [t if t is None else t.contiguous() for t in (w1_EFD, w2_EDF, w3_EFD, b1_EF, b2_ED, b3_EF)]
    options = {"act": act, "limit": limit, "interleaved": w3_EFD is None, "has_bias": b1_EF is not None}
    out, saved = launch(forward_kernel, x_TD.contiguous(), *layout.operands, *tensors, **options)
    return out, saved


def check(x: torch.Tensor, *weights: torch.Tensor | None) -> None:
    """Raises TrntError unless all are of one dtype that the kernels take."""
    found = {t.dtype for t in (x, *weights) if t is not None}
    if found not in ({torch.float32}, {torch.bfloat16}):
        names = ", ".join(sorted(str(d).removeprefix("torch.") for d in found))
        raise TrntError(f"the NKI experts take one dtype, bf16 or fp32, not {names}", "use --precision fp32 or bf16")


@operator("trnt::experts_backward")
def experts_backward(
    dout_TD: torch.Tensor,
    x_TD: torch.Tensor,
    scores_TK: torch.Tensor,
    ids_TK: torch.Tensor,
    saved: torch.Tensor,
    w1_EFD: torch.Tensor,
    w2_EDF: torch.Tensor,
    w3_EFD: torch.Tensor | None,
    b1_EF: torch.Tensor | None,
    b2_ED: torch.Tensor | None,
    b3_EF: torch.Tensor | None,
    act: str,
    limit: float,
    block: int,
) -> tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
]:
    """Gradients of x, scores, w1, w2, w3, b1, b2, b3, each in its tensor's dtype; empty for those that are None."""
    has_bias, interleaved = b1_EF is not None, w3_EFD is None
    layout = arrange(scores_TK, ids_TK, w2_EDF.shape[0], block)
    weights = [t if t is None else t.contiguous() for t in (w1_EFD, w2_EDF, w3_EFD, b2_ED)]
    options = {"act": act, "limit": limit, "interleaved": interleaved, "has_bias": has_bias}
    found = launch(
        backward_kernel,
        dout_TD.to(x_TD.dtype).contiguous(),
        x_TD.contiguous(),
        *for_backward(layout, w2_EDF),
        saved,
        *weights,
        **options,
    )
    dx, da_NB, rest = found[0], found[1], list(found[2:])
    dscores = da_NB.reshape(-1)[layout.position_TK.long()]
    order = [w1_EFD, w2_EDF, None if interleaved else w3_EFD]
    order += [b1_EF, b2_ED, None if interleaved else b3_EF] if has_bias else [None] * 3
    grads = [x_TD.new_empty(0) if t is None else rest.pop(0).to(t.dtype) for t in order]
    w1, w2, w3, b1, b2, b3 = grads
    return dx, dscores.to(scores_TK.dtype), w1, w2, w3, b1, b2, b3


@route.register_fake
def _(
    logits_TE: Any, bias_E: Any, top_k: int, score: str, normalise: bool, scale: float, groups: int, limited: int
) -> Any:
    shape = (logits_TE.shape[0], top_k)
    return logits_TE.new_empty(shape, dtype=torch.float32), logits_TE.new_empty(shape, dtype=torch.int64)


@experts_forward.register_fake
def _(
    x: Any,
    scores: Any,
    ids: Any,
    w1: Any,
    w2: Any,
    w3: Any,
    b1: Any,
    b2: Any,
    b3: Any,
    act: Any,
    limit: Any,
    block: Any,
) -> Any:
    blocks = ids.shape[0] * ids.shape[1] // block + w2.shape[0]
    return x.new_empty(x.shape), x.new_empty(blocks, P, 2, tiles(w2.shape[2]), block)


@experts_backward.register_fake
def _(dout: Any, x: Any, scores: Any, ids: Any, saved: Any, *tensors: Any) -> Any:
    grads = [x.new_empty(0) if t is None else t.new_empty(t.shape) for t in tensors[:6]]
    return (x.new_empty(x.shape), scores.new_empty(scores.shape), *grads)


def _keep_route(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0], output[1])
    ctx.options = inputs[3:6]
    ctx.set_materialize_grads(False)


def _route_backward(ctx: Any, grad: Any, _: Any) -> Any:
    if grad is None:
        return (None,) * 8
    logits, ids = ctx.saved_tensors
    return (affinity_gradient(grad, logits.float(), ids, *ctx.options).to(logits.dtype), *(None,) * 7)


def _keep_experts(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.act, ctx.limit, ctx.block = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.set_materialize_grads(False)


def _experts_backward(ctx: Any, grad: Any, _: Any) -> Any:
    if grad is None:
        return (None,) * 12
    *tensors, saved = ctx.saved_tensors
    x, scores, ids, *weights = tensors
    dx, dscores, *rest = experts_backward(grad, x, scores, ids, saved, *weights, ctx.act, ctx.limit, ctx.block)
    grads = [None if t is None else g for t, g in zip(weights, rest, strict=True)]
    return dx, dscores, None, *grads, None, None, None


route.register_autograd(_route_backward, setup_context=_keep_route)
experts_forward.register_autograd(_experts_backward, setup_context=_keep_experts)
