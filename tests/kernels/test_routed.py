"""The one-kernel experts equal the reference, forward and all gradients, whatever the router does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trnt.kernels import grads, reference, routed
from trnt.kernels.routed import RoutedSwiGLU

E, D, F = 16, 24, 20


def routing(tokens: int, top_k: int, kind: str) -> torch.Tensor:
    """Choices (T, K) without repeats."""
    scores = torch.rand(tokens, E, generator=torch.Generator().manual_seed(tokens * 31 + top_k))
    if kind == "skewed":
        scores = scores + torch.linspace(0, 3, E)
    elif kind == "one":
        scores[:, 2] += 10
    elif kind == "empty":
        scores[:, : E // 2] -= 10
    return scores.topk(top_k).indices


def inputs(tokens: int, top_k: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = [(tokens, D), (tokens, top_k), (E, F, D), (E, D, F), (E, F, D)]
    x, scores, *weights = (torch.randn(shape, generator=generator) for shape in shapes)
    return [x.requires_grad_(), scores.sigmoid().requires_grad_(), *(w.mul_(0.2).requires_grad_() for w in weights)]


def plain(x: torch.Tensor, scores: torch.Tensor, ids: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Every choice by `reference.experts`, weighted and added up."""
    order = torch.argsort(ids.flatten(), stable=True)
    rows = x.repeat_interleave(ids.shape[1], 0)[order]
    y = reference.experts(rows, torch.bincount(ids.flatten(), minlength=E), *weights)
    return torch.zeros_like(x).index_add(0, order // ids.shape[1], y * scores.flatten()[order, None])


def different(got: torch.Tensor, expected: torch.Tensor) -> bool:
    # fp32 sums in another order: 1e-5 relative to the largest number, the bar for all CPU kernels
    return bool((got - expected).abs().max() > 1e-5 * expected.abs().max().clamp(min=0.1))


@pytest.mark.parametrize("kind", ["even", "skewed", "one", "empty"])
@pytest.mark.parametrize(("tokens", "top_k"), [(37, 1), (64, 2), (33, 8), (1, 2)])
@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("shared", [1, 1 << 30], ids=["threads", "alone"])
def test_output_and_gradients_equal_the_reference(
    kind: str, tokens: int, top_k: int, owned: bool, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed, "LEAST_SHARED", shared)
    ids = routing(tokens, top_k, kind)
    x, scores, *weights = inputs(tokens, top_k)
    do = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    expected = plain(x, scores, ids, *weights)
    wanted = torch.autograd.grad(expected, (x, scores, *weights), do, allow_unused=True)
    if owned:
        for weight in weights:
            grads.own(weight)
            weight.grad = torch.full_like(weight, float("nan"))  # an earlier step's gradient must not shine through
    got = RoutedSwiGLU.apply(x, scores, ids, *weights)
    got.backward(do)
    found = [tensor.grad for tensor in (x, scores, *weights)]
    zero = [torch.zeros_like(t) if w is None else w for t, w in zip((x, scores, *weights), wanted, strict=True)]
    assert not different(got, expected)
    names = ("dx", "dscores", "dw1", "dw2", "dw3")
    assert [name for name, one, two in zip(names, found, zero, strict=True) if different(one, two)] == []


def test_owned_gradients_add_up_within_a_step_and_start_anew_in_the_next() -> None:
    ids = routing(20, 2, "even")
    x, scores, *weights = inputs(20, 2)
    for weight in weights:
        grads.own(weight)
    totals: list[Any] = []
    for times in (1, 2, 1):
        grads.reset(weights)
        for _ in range(times):
            RoutedSwiGLU.apply(x, scores, ids, *weights).sum().backward()
        totals.append([weight.grad.clone() for weight in weights])
    assert all(torch.equal(one, three) for one, three in zip(totals[0], totals[2], strict=True))
    assert not any(different(two, 2 * one) for one, two in zip(totals[0], totals[1], strict=True))


@pytest.mark.parametrize("shared", [1, 1 << 30])
def test_the_same_bits_every_time(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed, "LEAST_SHARED", shared)
    ids = routing(64, 8, "skewed")

    def once() -> list[torch.Tensor]:
        x, scores, *weights = inputs(64, 8)
        out = RoutedSwiGLU.apply(x, scores, ids, *weights)
        return [out, *torch.autograd.grad(out.square().sum(), (x, scores, *weights))]

    assert all(torch.equal(one, two) for one, two in zip(once(), once(), strict=True))


def test_bf16_gradients_are_the_fp32_ones_rounded() -> None:
    ids = routing(64, 4, "even")
    found = []
    for dtype in (None, torch.bfloat16):
        x, scores, *weights = inputs(64, 4)
        for weight in weights:
            grads.own(weight, dtype)
        RoutedSwiGLU.apply(x, scores, ids, *weights).sum().backward()
        found.append([weight.grad for weight in weights])
    assert all(two.dtype == torch.bfloat16 for two in found[1])
    assert all(torch.equal(one.bfloat16(), two) for one, two in zip(*found, strict=True))
