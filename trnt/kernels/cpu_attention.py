"""Causal attention on CPU inside each packed document, with sliding windows and sinks, as a custom operator.

torch's flash kernel does the work in blocks: no L x L mask is made, and nothing loops over tokens.

A sink (GPT-OSS) is a logit beside the keys whose value is zero: with l the log-sum-exp of the keys, attention becomes
out * exp(l - l') where l' = log(exp(l) + exp(sink)). Given that out and that l', the flash kernel's own backward is the
backward with the sink: its probabilities are exp(score - l'), and the sum of dout * out lacks the sink's part because
the sink's value is zero.

A window of w: a query sees itself and the w - 1 keys before it. Queries go in blocks of w, each against its own block
of keys and the one before, under one band mask of w x 2 w: memory and time grow with L w.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch

Heads: TypeAlias = torch.Tensor  # (documents or blocks, heads, length, head size)
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def groups(cu_seqlens: list[int]) -> Iterator[tuple[int, int, int]]:
    """Runs of equal-length documents: (first token, number of documents, length). One kernel call each."""
    lengths = [end - begin for begin, end in itertools.pairwise(cu_seqlens)]
    index, begin = 0, 0
    while index < len(lengths):
        last = index
        while last < len(lengths) and lengths[last] == lengths[index]:
            last += 1
        if lengths[index]:
            yield begin, last - index, lengths[index]
        begin += (last - index) * lengths[index]
        index = last


def bounds(cu_seqlens: torch.Tensor, tokens: int) -> list[int]:
    """The boundaries as numbers. Raises ValueError unless they rise from 0 to the number of tokens."""
    found = [int(number) for number in cu_seqlens.tolist()]
    if not found or found[0] != 0 or found[-1] != tokens or any(b < a for a, b in itertools.pairwise(found)):
        raise ValueError(f"document boundaries must rise from 0 to {tokens}, got {found[:3]} ... {found[-1:]}")
    return found


def lse_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype in which torch's kernel hands out log-sum-exps."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class Call:
    """One call of the flash kernel: which queries against which keys, and whether a band or plain causality masks them.

    queries: (first token, blocks, length); keys: (first token, length, a multiple of `step`), block b's keys begin
    b x `step` tokens later.
    """

    def __init__(self, queries: tuple[int, int, int], keys: tuple[int, int], step: int, window: int) -> None:
        self.queries, self.keys, self.step, self.window = queries, keys, step, window

    def view_q(self, x_TNK: torch.Tensor) -> Heads:
        """A view of the queries' tokens as (blocks, N, length, K); nothing is copied."""
        begin, count, length = self.queries
        return x_TNK[begin : begin + count * length].unflatten(0, (count, length)).transpose(1, 2)

    def view_k(self, x_TNK: torch.Tensor) -> Heads:
        """The same of the keys' tokens, which two blocks may share."""
        begin, length = self.keys
        token, *inner = x_TNK.stride()
        size = (self.queries[1], length, *x_TNK.shape[1:])
        strides = (self.step * token, token, *inner)
        return x_TNK.as_strided(size, strides, x_TNK.storage_offset() + begin * token).transpose(1, 2)

    def add_k(self, into_TNK: torch.Tensor, grad: Heads) -> None:
        """Add the gradient of `view_k` where it belongs: `step` tokens of every block at once, then the next."""
        begin, length = self.keys
        count = self.queries[1]
        for part in range(0, length, self.step):
            at, to = begin + part, part + self.step
            into_TNK[at : at + count * self.step].unflatten(0, (count, self.step)).add_(
                grad.transpose(1, 2)[:, part:to]
            )

    def options(self, x: torch.Tensor) -> dict[str, Any]:
        """How the kernel masks: causally, or query i of the block sees keys i + 1 to i + window."""
        if not self.window:
            return {"is_causal": True}
        rows, columns = self.queries[2], self.keys[1]
        distance = torch.arange(columns, device=x.device) - torch.arange(rows, device=x.device)[:, None]
        seen = (distance > 0) & (distance <= self.window)
        return {"is_causal": False, "attn_mask": torch.zeros_like(seen, dtype=x.dtype).masked_fill_(~seen, -torch.inf)}


def calls(edges: list[int], window: int) -> Iterator[Call]:
    """The kernel calls of all documents; window 0 means none."""
    for begin, count, length in groups(edges):
        if not window or length <= window:
            yield Call((begin, count, length), (begin, length), length, 0)
            continue
        for first in range(begin, begin + count * length, length):
            yield Call((first, 1, window), (first, window), window, 0)
            whole, rest = divmod(length - window, window)
            if whole:
                yield Call((first + window, whole, window), (first, 2 * window), window, window)
            if rest:
                last = first + window * (1 + whole)
                yield Call((last, 1, rest), (last - window, window + rest), window + rest, window)


@torch.library.custom_op("trnt::document_attention", mutates_args=())
def document_attention(
    q_TNK: torch.Tensor,
    k_TNK: torch.Tensor,
    v_TNK: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
    sinks_H: torch.Tensor | None = None,
    window: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention inside each document, with grouped-query heads: out (T, H, K) and log-sum-exp (H, T) fp32.

    q is (T, H, K), k and v (T, N, K), H a multiple of N. cu_seqlens: where each document begins, and T at the end.
    sinks_H: a logit per head beside the keys, part of the log-sum-exp. window: keys a query sees, itself included; 0:
    all before it. Memory is O(T H K): measured at T = 4,096, H = 32, N = 4, K = 128 in fp32, without a window: the
    output's 64 MiB and less than 16 MiB beside it.
    """
    edges = bounds(cu_seqlens, q_TNK.shape[0])
    out_THK = torch.empty_like(q_TNK, memory_format=torch.contiguous_format)
    lse_HT = q_TNK.new_empty(q_TNK.shape[1], q_TNK.shape[0], dtype=lse_dtype(q_TNK))
    for call in calls(edges, window):
        q, k, v = call.view_q(q_TNK), call.view_k(k_TNK), call.view_k(v_TNK)
        out, lse = FORWARD(q, k, v, 0.0, scale=scale, **call.options(q))
        if sinks_H is not None:
            with_sink = torch.logaddexp(lse, sinks_H.to(lse.dtype)[:, None])
            out = out * (lse - with_sink).exp_()[..., None].to(out.dtype)
            lse = with_sink
        call.view_q(out_THK).copy_(out)
        begin, count, length = call.queries
        lse_HT[:, begin : begin + count * length].view(-1, count, length).copy_(lse.transpose(0, 1))
    return out_THK, lse_HT


@document_attention.register_fake
def _(q_TNK: Any, k_TNK: Any, v_TNK: Any, cu_seqlens: Any, scale: Any, sinks_H: Any = None, window: Any = 0) -> Any:
    out = torch.empty_like(q_TNK, memory_format=torch.contiguous_format)
    return out, q_TNK.new_empty(q_TNK.shape[1], q_TNK.shape[0], dtype=lse_dtype(q_TNK))


@torch.library.custom_op("trnt::document_attention_backward", mutates_args=())
def document_attention_backward(
    do_THK: torch.Tensor,
    q_TNK: torch.Tensor,
    k_TNK: torch.Tensor,
    v_TNK: torch.Tensor,
    out_THK: torch.Tensor,
    lse_HT: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
    sinks_H: torch.Tensor | None = None,
    window: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k, v and of the sinks (empty without any), document by document."""
    edges = bounds(cu_seqlens, q_TNK.shape[0])
    dq_TNK = torch.empty_like(q_TNK, memory_format=torch.contiguous_format)
    make = torch.zeros_like if window else torch.empty_like
    dk_TNK, dv_TNK = (make(x, memory_format=torch.contiguous_format) for x in (k_TNK, v_TNK))
    for call in calls(edges, window):
        do, q, out = (call.view_q(x) for x in (do_THK, q_TNK, out_THK))
        k, v = call.view_k(k_TNK), call.view_k(v_TNK)
        begin, count, length = call.queries
        lse = lse_HT[:, begin : begin + count * length].reshape(-1, count, length).transpose(0, 1).contiguous()
        masked = call.options(q)
        dq, dk, dv = BACKWARD(do, q, k, v, out, lse, 0.0, masked.pop("is_causal"), scale=scale, **masked)
        call.view_q(dq_TNK).copy_(dq)
        for into, grad in ((dk_TNK, dk), (dv_TNK, dv)):
            if window:
                call.add_k(into, grad)
            else:
                call.view_k(into).copy_(grad)
    if sinks_H is None:
        return dq_TNK, dk_TNK, dv_TNK, q_TNK.new_empty(0)
    share_HT = (sinks_H.to(lse_HT.dtype)[:, None] - lse_HT).exp_()
    dsinks_H = -(share_HT * (do_THK * out_THK).sum(-1).T).sum(1)
    return dq_TNK, dk_TNK, dv_TNK, dsinks_H.to(sinks_H.dtype)


@document_attention_backward.register_fake
def _(
    do: Any, q_TNK: Any, k_TNK: Any, v_TNK: Any, out: Any, lse: Any, cu_seqlens: Any, scale: Any,
    sinks_H: Any = None, window: Any = 0,
) -> Any:  # fmt: skip
    grads = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q_TNK, k_TNK, v_TNK))
    return (*grads, q_TNK.new_empty(0) if sinks_H is None else torch.empty_like(sinks_H))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    q_TNK, k_TNK, v_TNK, cu_seqlens, ctx.scale, sinks_H, ctx.window = inputs
    ctx.save_for_backward(q_TNK, k_TNK, v_TNK, *output, cu_seqlens, sinks_H)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, do_THK: Any, dlse: Any) -> Any:
    if do_THK is None:
        return (None,) * 7
    q_TNK, k_TNK, v_TNK, out_THK, lse_HT, cu_seqlens, sinks_H = ctx.saved_tensors
    dq, dk, dv, dsinks = document_attention_backward(
        do_THK.contiguous(), q_TNK, k_TNK, v_TNK, out_THK, lse_HT, cu_seqlens, ctx.scale, sinks_H, ctx.window
    )
    return dq, dk, dv, None, None, None if sinks_H is None else dsinks, None


document_attention.register_autograd(_backward, setup_context=_save)
