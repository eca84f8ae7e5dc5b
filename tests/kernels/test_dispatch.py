"""Sorting by expert and back: torchtitan's numbers, the same to the bit every time."""

from __future__ import annotations

import torch
from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher

from trnt.kernels.dispatch import Dispatcher


def run(cls, x, scores, ids, counts):  # type: ignore[no-untyped-def]
    dispatcher = cls.Config(num_experts=len(counts), top_k=ids.shape[1]).build()
    rows, got, metadata = dispatcher.dispatch(x, scores, ids, counts)
    assert torch.equal(got, counts)
    return rows, dispatcher.combine(rows * 2, metadata, x)


def test_rows_and_results_are_torchtitan_s() -> None:
    torch.manual_seed(0)
    x, scores = torch.randn(33, 6, requires_grad=True), torch.rand(33, 3, requires_grad=True)
    ids = torch.rand(33, 5).topk(3).indices
    counts = torch.bincount(ids.flatten(), minlength=5)
    ours, theirs = (run(cls, x, scores, ids, counts) for cls in (Dispatcher, LocalTokenDispatcher))
    assert torch.equal(ours[0], theirs[0])
    assert torch.allclose(ours[1], theirs[1], rtol=1e-6)
    dy = torch.randn_like(ours[1])
    for one, two in zip(
        torch.autograd.grad(ours[1], (x, scores), dy), torch.autograd.grad(theirs[1], (x, scores), dy), strict=True
    ):
        assert torch.allclose(one, two, rtol=1e-5, atol=1e-6)


def test_gradients_repeat_themselves_to_the_bit() -> None:
    torch.manual_seed(0)
    x, scores = torch.randn(3000, 64, requires_grad=True), torch.rand(3000, 4, requires_grad=True)
    ids = torch.rand(3000, 8).topk(4).indices
    counts = torch.bincount(ids.flatten(), minlength=8)
    dy = torch.randn(3000, 64)
    first = torch.autograd.grad(run(Dispatcher, x, scores, ids, counts)[1], (x, scores), dy)
    for _ in range(4):
        again = torch.autograd.grad(run(Dispatcher, x, scores, ids, counts)[1], (x, scores), dy)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
