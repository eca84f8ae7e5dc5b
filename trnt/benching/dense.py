"""The cases that every model has: attention inside documents, the head with its loss, the norm."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from trnt.benching.sizes import Sizes
from trnt.benching.work import Case, Outputs, Work, leaf, tile
from trnt.kernels import grads, reference
from trnt.kernels.cpu_attention import document_attention
from trnt.kernels.loss import head_and_loss

LOGITS = 320 << 20  # bytes of a chunk of logits, as in training
EPS = 1e-6


def heads(sizes: Sizes, device: str, dtype: torch.dtype) -> SimpleNamespace:
    """Queries, keys, values, where the documents begin, and the output's gradient."""
    T, H, N, K = sizes.tokens, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
    edges = [0, *itertools.accumulate(sizes.documents())]
    return SimpleNamespace(
        sizes=sizes,
        edges=edges,
        scale=K**-0.5,
        q=tile((T, H, K), dtype, device, 1.0, 1),
        k=tile((T, N, K), dtype, device, 1.0, 2),
        v=tile((T, N, K), dtype, device, 1.0, 3),
        dout=tile((T, H, K), dtype, device, 1.0, 4),
    )


def attention_by_reference(given: SimpleNamespace, *, gradients: bool) -> Outputs:
    """The plain formula, one kv head and its queries at a time: all L x L scores at once would be gigabytes."""
    positions = torch.cat([torch.arange(length) for length in given.sizes.documents()])[None]
    group = given.sizes.num_heads // given.sizes.num_kv_heads
    found: dict[str, list[torch.Tensor]] = {}
    for n in range(given.sizes.num_kv_heads):
        one, mine = slice(n, n + 1), slice(n * group, (n + 1) * group)
        parts = [x.cpu().float()[None] for x in (given.q[:, mine], given.k[:, one], given.v[:, one])]
        q, k, v = (leaf(x) for x in parts)
        with torch.set_grad_enabled(gradients):
            out = reference.attention(q, k, v, positions, given.scale)
        pieces = {"out": out.detach()}
        if gradients:
            dout = given.dout[:, mine].cpu().float()[None]
            pieces = dict(zip("qkv", torch.autograd.grad(out, (q, k, v), dout), strict=True))
        for name, piece in pieces.items():
            found.setdefault(name, []).append(piece[0])
    return {name: torch.cat(pieces, 1) for name, pieces in found.items()}


def documents(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: SimpleNamespace) -> torch.Tensor:
    """trnt's operator over all documents."""
    edges = torch.tensor(given.edges, dtype=torch.int32)
    return document_attention(q, k, v, edges, given.scale)[0]


def one_by_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: SimpleNamespace) -> torch.Tensor:
    """torch's plain causal attention on each document by itself: no mask to speak of."""
    found = []
    for begin, end in itertools.pairwise(given.edges):
        q1, k1, v1 = (x[begin:end].transpose(0, 1)[None] for x in (q, k, v))
        out = F.scaled_dot_product_attention(q1, k1, v1, is_causal=True, scale=given.scale, enable_gqa=True)
        found.append(out[0].transpose(0, 1))
    return torch.cat(found)


def attention_by(function: Callable[..., Any], *, backward: bool) -> Callable[[SimpleNamespace], Work]:
    def build(given: SimpleNamespace) -> Work:
        leaves = [leaf(x) for x in (given.q, given.k, given.v)]
        held: list[Any] = []

        def forward() -> None:
            held[:] = [function(*leaves, given)]

        if not backward:
            return Work(forward, lambda: {"out": held[0].detach()}, held.clear)
        forward()

        def prepare() -> None:
            for tensor in leaves:
                tensor.grad = None

        def run() -> None:
            held[0].backward(given.dout, retain_graph=True)

        return Work(run, lambda: dict(zip("qkv", (x.grad for x in leaves), strict=True)), prepare)

    return build


def attention_case(*, backward: bool) -> Case:
    functions = {"cpu": documents, "torch": one_by_one}
    return Case(
        inputs=heads,
        expected=lambda given: attention_by_reference(given, gradients=backward),
        kernels={name: attention_by(function, backward=backward) for name, function in functions.items()},
        # the backward makes the scores again: five products to the forward's two
        flops=lambda s: s.attention_flops() * (2.5 if backward else 1),
        moved=lambda s, size: float(
            size * s.tokens * s.head_dim * (s.num_heads + s.num_kv_heads) * (4 if backward else 2)
        ),
        terms=lambda s: s.head_dim + max(s.documents()),
        # all scores of one kv head's queries, in fp32, six times over under autograd
        scratch=lambda s: 24.0 * s.tokens**2 * s.num_heads / s.num_kv_heads,
    )


def head(sizes: Sizes, device: str, dtype: torch.dtype) -> SimpleNamespace:
    """Hidden states, the head's weight, and the next tokens; every eighth counts nothing."""
    T, D, V = sizes.tokens, sizes.hidden_size, sizes.vocab_size
    labels = torch.randint(V, (T,), generator=torch.Generator().manual_seed(0))
    labels[::8] = -100
    return SimpleNamespace(
        sizes=sizes,
        labels=labels.to(device),
        targets=(labels != -100).sum().to(device),
        h=tile((T, D), dtype, device, 1.0, 1),
        weight=tile((V, D), dtype, device, D**-0.5, 2),
    )


def loss_by_reference(given: SimpleNamespace) -> Outputs:
    """The formula and its gradients, written out: dlogits = (softmax - one-hot) / targets."""
    h, weight, keep = given.h.float(), given.weight.float(), given.labels != -100
    logits = h @ weight.T
    loss = reference.cross_entropy(logits, given.labels) / given.targets
    slope = logits.softmax(-1)
    slope[keep, given.labels[keep]] -= 1
    slope[~keep] = 0
    slope /= given.targets
    return {"loss": loss[None], "h": slope @ weight, "weight": slope.T @ h}


def loss_in_place(given: SimpleNamespace) -> Work:
    """trnt's: in chunks, the weight's gradient written in place."""
    weight = leaf(given.weight)
    grads.own(weight)
    held: list[torch.Tensor] = []

    def prepare() -> None:
        mark = grads.owner(weight)
        assert mark is not None
        mark.stale = True

    def run() -> None:
        held[:] = head_and_loss(given.h, given.labels, weight, given.targets, LOGITS)

    def outputs() -> Outputs:
        assert weight.grad is not None
        return {"loss": held[0][None], "h": held[1], "weight": weight.grad}

    return Work(run, outputs, prepare)


def loss_by_torch(given: SimpleNamespace) -> Work:
    """Linear and cross entropy under autograd."""
    h, weight = leaf(given.h), leaf(given.weight)
    held: list[torch.Tensor] = []

    def prepare() -> None:
        h.grad = weight.grad = None

    def run() -> None:
        loss = F.cross_entropy(F.linear(h, weight).float(), given.labels, reduction="sum") / given.targets
        loss.backward()
        held[:] = [loss.detach()]

    def outputs() -> Outputs:
        assert h.grad is not None
        assert weight.grad is not None
        return {"loss": held[0][None], "h": h.grad, "weight": weight.grad}

    return Work(run, outputs, prepare)


def hidden(sizes: Sizes, device: str, dtype: torch.dtype) -> SimpleNamespace:
    """Hidden states, the norm's weight, and the output's gradient."""
    shape = (sizes.tokens, sizes.hidden_size)
    weight = tile((sizes.hidden_size,), dtype, device, 0.1, 2) + 1
    return SimpleNamespace(x=tile(shape, dtype, device, 1.0, 1), weight=weight, dout=tile(shape, dtype, device, 1.0, 3))


def plain_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight


def torch_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, EPS)


def norm_by(function: Callable[..., Any], *, exactly: bool = False) -> Callable[[SimpleNamespace], Work]:
    """Forward and backward. exactly: in float64."""

    def build(given: SimpleNamespace) -> Work:
        values = (given.x, given.weight, given.dout)
        x, weight, dout = (t.double() for t in values) if exactly else values
        x, weight = leaf(x), leaf(weight)
        held: list[torch.Tensor] = []

        def run() -> None:
            out = function(x, weight)
            held[:] = [out.detach(), *torch.autograd.grad(out, (x, weight), dout)]

        return Work(run, lambda: dict(zip(("out", "x", "weight"), held, strict=True)))

    return build


def norm_by_reference(given: SimpleNamespace) -> Outputs:
    work = norm_by(plain_norm, exactly=True)(given)
    work.run()
    return work.outputs()


CASES = {
    "attention": attention_case(backward=False),
    "attention-backward": attention_case(backward=True),
    "loss": Case(
        inputs=head,
        expected=loss_by_reference,
        kernels={"cpu": loss_in_place, "torch": loss_by_torch},
        flops=lambda s: 6.0 * s.tokens * s.hidden_size * s.vocab_size,
        # the weight read, its gradient written, hidden states in and their gradient out
        moved=lambda s, size: 2.0 * size * s.hidden_size * (s.vocab_size + s.tokens),
        terms=lambda s: s.hidden_size + s.vocab_size,
    ),
    "rmsnorm": Case(
        inputs=hidden,
        expected=norm_by_reference,
        kernels={"torch": norm_by(torch_norm)},
        flops=lambda s: 14.0 * s.tokens * s.hidden_size,
        # x and the output's gradient read, the output and x's gradient written
        moved=lambda s, size: 4.0 * size * s.tokens * s.hidden_size,
        terms=lambda s: s.hidden_size + s.tokens,
    ),
}
