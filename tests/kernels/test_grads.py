"""Owned gradients: overwritten first, added to after, zero when nothing came."""

from __future__ import annotations

import pytest
import torch

from trnt.kernels import grads


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("rows", [3, 700])
def test_a_product_is_written_then_added(dtype: torch.dtype | None, rows: int) -> None:
    a = torch.randint(-3, 4, (5, rows)).float()
    b = torch.randint(-3, 4, (5, 2048)).float()
    out = torch.full((rows, 2048), float("nan"), dtype=dtype or torch.float32)
    grads.put_product(out, a, b, overwrite=True)
    assert torch.equal(out.float(), a.T @ b)  # small whole numbers are exact in bf16
    grads.put_product(out, a, b, overwrite=False)
    assert torch.equal(out.float(), 2 * (a.T @ b))


def test_a_buffer_is_stale_once_per_step_and_kept() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    assert not grads.usable(weight)
    grads.own(weight, torch.bfloat16)
    assert grads.usable(weight)
    first, stale = grads.buffer(weight)
    assert (first.dtype, stale) == (torch.bfloat16, True)
    assert grads.buffer(weight) == (first, False) or grads.buffer(weight)[1] is False
    grads.reset([weight])
    assert weight.grad is first
    assert grads.buffer(weight)[1] is True
    grads.reset([weight], keep=False)
    assert weight.grad is None


def test_a_weight_that_nothing_reached_has_the_gradient_zero() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    grads.own(weight)
    grads.buffer(weight)[0].fill_(5)
    grads.settle([weight])
    assert torch.equal(weight.grad, torch.full((2, 3), 5.0))
    grads.reset([weight])
    grads.settle([weight])
    assert not weight.grad.any()


def test_unowned_gradients_are_dropped_at_the_start_of_a_step() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.sum().backward()
    grads.reset([weight])
    assert weight.grad is None
