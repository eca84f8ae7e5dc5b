"""The cases of a mixture of experts: forward, backward, and the router."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from trnt.benching.sizes import Sizes
from trnt.benching.work import Case, Outputs, Work, leaf, tile
from trnt.kernels import grads, reference
from trnt.kernels.nki import torch_ops
from trnt.kernels.routed import RoutedSwiGLU, by_expert

NAMES = ("x", "scores", "w1", "w2", "w3")


def inputs(sizes: Sizes, device: str, dtype: torch.dtype) -> SimpleNamespace:
    """Tokens, a random choice of top_k experts each, their scores, weights, and the output's gradient."""
    T, D, F_, E = sizes.tokens, sizes.hidden_size, sizes.expert_size, sizes.num_experts
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(T, E, generator=generator)
    ids = scores.topk(sizes.top_k).indices.to(device)
    chosen = scores.gather(1, ids.cpu()).softmax(-1).to(device)
    return SimpleNamespace(
        sizes=sizes,
        ids=ids,
        x=tile((T, D), dtype, device, 1.0, 1),
        scores=chosen,
        w1=tile((E, F_, D), dtype, device, D**-0.5, 2),
        w2=tile((E, D, F_), dtype, device, F_**-0.5, 3),
        w3=tile((E, F_, D), dtype, device, D**-0.5, 4),
        dout=tile((T, D), dtype, device, 1.0, 5),
    )


def by_reference(given: SimpleNamespace, *, gradients: bool) -> Outputs:
    """The plain formula in fp32, expert by expert, each expert's weights a tensor of its own."""
    E = given.sizes.num_experts
    counts, order_R, token_R = by_expert(given.ids, E)
    x, scores = leaf(given.x.float()), leaf(given.scores.float())
    weights = [[leaf(w.float()) for w in getattr(given, name)] for name in NAMES[2:]]
    with torch.set_grad_enabled(gradients):
        y_RD = reference.experts(x[token_R], torch.tensor(counts), *weights)
        out = torch.zeros_like(x).index_add(0, token_R, scores.flatten()[order_R, None] * y_RD)
    if not gradients:
        return {"out": out}
    flat = [x, scores, *(w for group in weights for w in group)]
    found = torch.autograd.grad(out, flat, given.dout.float(), allow_unused=True)
    found = tuple(torch.zeros_like(w) if g is None else g for w, g in zip(flat, found, strict=True))
    groups = (torch.stack(found[2 + i * E : 2 + (i + 1) * E]) for i in range(3))
    return dict(zip(NAMES, (*found[:2], *groups), strict=True))


def grouped(x: Any, scores: Any, ids: Any, w1: Any, w2: Any, w3: Any) -> torch.Tensor:
    """torch's own grouped products, as transformers' `grouped_mm` experts use them."""
    E = w1.shape[0]
    order_R = torch.argsort(ids.flatten(), stable=True)
    token_R = order_R // ids.shape[1]
    ends = torch.bincount(ids.flatten(), minlength=E).cumsum(0).to(torch.int32)
    x_RD = x[token_R]
    gate, up = (F.grouped_mm(x_RD, w.transpose(1, 2), offs=ends) for w in (w1, w3))
    y_RD = F.grouped_mm(F.silu(gate) * up, w2.transpose(1, 2), offs=ends)
    return torch.zeros_like(x).index_add(0, token_R, scores.flatten()[order_R, None].to(x.dtype) * y_RD)


def forward_by(function: Callable[..., Any]) -> Callable[[SimpleNamespace], Work]:
    """A forward under autograd, as training has it: what the backward needs is kept."""

    def build(given: SimpleNamespace) -> Work:
        x, scores, *weights = (leaf(getattr(given, name)) for name in NAMES)
        held: list[torch.Tensor] = []

        def run() -> None:
            held[:] = [function(x, scores, given.ids, *weights)]

        return Work(run, lambda: {"out": held[0].detach()}, held.clear)

    return build


def backward_by(function: Callable[..., Any], *, owned: bool) -> Callable[[SimpleNamespace], Work]:
    """A backward alone, on what a forward kept. owned: the weights' gradients are written in place, as in training."""

    def build(given: SimpleNamespace) -> Work:
        leaves = [leaf(getattr(given, name)) for name in NAMES]
        if owned:
            for weight in leaves[2:]:
                grads.own(weight)
        out = function(leaves[0], leaves[1], given.ids, *leaves[2:])

        def prepare() -> None:
            for tensor in leaves:
                mark = grads.owner(tensor)
                if mark is None:
                    tensor.grad = None
                else:
                    mark.stale = True

        def run() -> None:
            out.backward(given.dout, retain_graph=True)

        return Work(run, lambda: dict(zip(NAMES, (t.grad for t in leaves), strict=True)), prepare)

    return build


def nki(x: Any, scores: Any, ids: Any, w1: Any, w2: Any, w3: Any) -> torch.Tensor:
    """The NKI kernels: on CPU tensors interpreted, on a Neuron device compiled."""
    none = (None, None, None)
    options = ("silu", torch_ops.GPT_OSS_LIMIT, torch_ops.block_of(w2))
    return torch_ops.experts_forward(x, scores, ids, w1, w2, w3, *none, *options)[0]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cpu": RoutedSwiGLU.apply,
    "torch": grouped,
    "nki-sim": nki,
    "nki": nki,
}


def logits(sizes: Sizes, device: str, dtype: torch.dtype) -> SimpleNamespace:
    """A router's logits, fp32 as they are everywhere."""
    return SimpleNamespace(sizes=sizes, logits=tile((sizes.tokens, sizes.num_experts), torch.float32, device, 1.0, 6))


def route_by(function: Callable[..., Any]) -> Callable[[SimpleNamespace], Work]:
    def build(given: SimpleNamespace) -> Work:
        held: list[Any] = []

        def run() -> None:
            held[:] = function(given.logits, given.sizes.top_k)

        return Work(run, lambda: chosen(*held))

    return build


def chosen(affinity_TK: torch.Tensor, ids_TK: torch.Tensor) -> Outputs:
    return {"affinity": affinity_TK, "ids": ids_TK}


def softmax_topk(logits_TE: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As torchtitan's router has it: softmax, top-k, divided by the sum of the chosen."""
    scores, ids = logits_TE.softmax(-1).topk(top_k)
    return scores / (scores.sum(-1, keepdim=True) + 1e-20), ids


def nki_route(logits_TE: torch.Tensor, top_k: int) -> Any:
    return torch_ops.route(logits_TE, None, top_k, "softmax", True, 1.0, 0, 0)


def longest(sizes: Sizes) -> int:
    """Terms of the longest sum: over the hidden size, the experts' width, or an expert's tokens."""
    return sizes.hidden_size + sizes.expert_size + sizes.tokens


def roundings(sizes: Sizes) -> int:
    """Gate, up, its sigmoid, three products, down, score; and each choice added."""
    return 8 + sizes.top_k


CASES = {
    "experts-forward": Case(
        inputs=inputs,
        expected=lambda given: by_reference(given, gradients=False),
        kernels={name: forward_by(function) for name, function in FUNCTIONS.items()},
        flops=lambda s: 6.0 * s.rows * s.hidden_size * s.expert_size,
        # weights, tokens in and out, gate and up kept
        moved=lambda s, size: size * (s.expert_weights + 2 * s.tokens * s.hidden_size + 2 * s.rows * s.expert_size),
        terms=longest,
        roundings=roundings,
    ),
    "experts-backward": Case(
        inputs=inputs,
        expected=lambda given: by_reference(given, gradients=True),
        kernels={name: backward_by(function, owned=name == "cpu") for name, function in FUNCTIONS.items()},
        flops=lambda s: 12.0 * s.rows * s.hidden_size * s.expert_size,
        # weights read and their gradients written, three tensors of tokens, gate and up
        moved=lambda s, size: size * (2 * s.expert_weights + 3 * s.tokens * s.hidden_size + 2 * s.rows * s.expert_size),
        terms=longest,
        roundings=roundings,
    ),
    "route": Case(
        inputs=logits,
        expected=lambda given: chosen(*reference.route(given.logits, given.sizes.top_k)),
        kernels={"torch": route_by(softmax_topk), "nki-sim": route_by(nki_route), "nki": route_by(nki_route)},
        flops=lambda s: 4.0 * s.tokens * s.num_experts,
        moved=lambda s, size: s.tokens * (4.0 * s.num_experts + 12 * s.top_k),
        terms=lambda s: s.num_experts,
    ),
}
