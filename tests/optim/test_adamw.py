"""Reduced AdamW is torch's AdamW: exactly with fp32 moments, within its rounding with fewer bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trnt.kernels import grads
from trnt.optim import adamw
from trnt.optim.adamw import ReducedAdamW

SHAPES = [(64, 256), (8, 24, 96), (130,)]
OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def weights(seed: int = 0) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def run(optimizer: torch.optim.Optimizer, held: list[torch.nn.Parameter], steps: int, dtype: Any = None) -> None:
    """Steps on noisy gradients of a quadratic whose curvature spans four decades."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for weight in held:
            curvature = torch.logspace(-2, 2, weight.shape[-1])
            grad = weight.detach() * curvature * (1 + 0.3 * torch.randn(weight.shape, generator=generator))
            weight.grad = grad if dtype is None else grad.to(dtype)
        optimizer.step()


def test_fp32_moments_give_torch_s_bits() -> None:
    ours, theirs = weights(), weights()
    run(ReducedAdamW(ours, moments="fp32", **OPTIONS), ours, 5)
    run(torch.optim.AdamW(theirs, fused=True, **OPTIONS), theirs, 5)
    assert all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("moments", "tolerance"), [("bf16", 0.02), ("8bit", 0.2)])
@pytest.mark.parametrize("piece", [1 << 17, 512])
def test_fewer_bits_walk_the_same_way(
    moments: str, tolerance: float, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way differs by what rounding does: 2^-8 in bf16; 8 bits share a scale over four decades."""
    monkeypatch.setitem(adamw.PIECE, "cpu", piece)
    ours, theirs, start = weights(), weights(), weights()
    run(ReducedAdamW(ours, moments=moments, **OPTIONS), ours, 30)
    run(torch.optim.AdamW(theirs, **OPTIONS), theirs, 30)
    for one, two, zero in zip(ours, theirs, start, strict=True):
        assert (one - two).norm() < tolerance * (two - zero).norm()


@pytest.mark.parametrize("moments", ["fp32", "bf16", "8bit"])
def test_gradients_are_divided_by_the_scale(moments: str) -> None:
    one, two = weights(), weights()
    optimizer, scaled = ReducedAdamW(one, moments=moments, **OPTIONS), ReducedAdamW(two, moments=moments, **OPTIONS)
    for weight, other in zip(one, two, strict=True):
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
        other.grad = weight.grad * 4
    scaled.grad_scale = torch.tensor(4.0)
    optimizer.step()
    scaled.step()
    assert all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("moments", ["bf16", "8bit"])
def test_bf16_gradients_are_taken_as_they_are(moments: str) -> None:
    one, two = weights(), weights()
    for weight in one:
        grads.own(weight, torch.bfloat16)
    run(ReducedAdamW(one, moments=moments, **OPTIONS), one, 1, torch.bfloat16)
    for weight, other in zip(one, two, strict=True):
        other.grad = weight.grad.float()
    ReducedAdamW(two, moments=moments, **OPTIONS).step()
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("moments", ["fp32", "bf16", "8bit"])
def test_a_saved_state_goes_on_to_the_bit(moments: str) -> None:
    straight, broken = weights(), weights()
    run(ReducedAdamW(straight, moments=moments, **OPTIONS), straight, 1)
    first = ReducedAdamW(broken, moments=moments, **OPTIONS)
    run(first, broken, 1)
    saved = {
        "state": {k: {n: t.clone() for n, t in s.items()} for k, s in first.state_dict()["state"].items()},
        "param_groups": first.state_dict()["param_groups"],
    }
    second = ReducedAdamW(broken, moments=moments, **OPTIONS)
    second.load_state_dict(saved)
    dtypes = {tensor.dtype for tensor in second.state[broken[0]].values()}
    expected = {"fp32": {torch.float32}, "bf16": {torch.float32, torch.bfloat16}}
    assert dtypes == expected.get(moments, {torch.float32, torch.int8, torch.uint8})
    for weight, other in zip(straight, broken, strict=True):
        weight.grad = torch.ones_like(weight)
        other.grad = torch.ones_like(other)
    full = ReducedAdamW(straight, moments=moments, **OPTIONS)
    full.load_state_dict(saved)
    full.step()
    second.step()
    assert all(torch.equal(a, b) for a, b in zip(straight, broken, strict=True))


def test_states_take_the_bytes_they_should() -> None:
    held = [torch.nn.Parameter(torch.zeros(1024, 1024))]
    sizes = {}
    for moments in ("fp32", "bf16", "8bit"):
        optimizer = ReducedAdamW(held, moments=moments)
        optimizer.init_states()
        sizes[moments] = sum(t.nbytes for n, t in optimizer.state[held[0]].items() if n != "step") / 1024**2
    from trnt.parallel.plan import STATE_BYTES

    assert sizes == STATE_BYTES
