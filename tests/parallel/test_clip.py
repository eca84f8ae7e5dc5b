"""Clipping by the global norm, on one process; over several see test_layouts.py."""

from __future__ import annotations

import pytest
import torch

from trnt.parallel.clip import clip, spread, squares
from trnt.parallel.parts import local


def parameters() -> list[torch.Tensor]:
    found = []
    for seed, shape in enumerate(((300, 50), (7,), (2, 3, 4))):
        parameter = torch.nn.Parameter(torch.zeros(shape))
        parameter.grad = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        found.append(parameter)
    found.append(torch.nn.Parameter(torch.zeros(3)))  # without a gradient
    return found


@pytest.mark.parametrize("most", [1.0, 1e6])
def test_the_norm_and_the_scaled_gradients(most: float) -> None:
    held = parameters()
    before = [p.grad.clone() for p in held if p.grad is not None]
    expected = torch.cat([grad.flatten() for grad in before]).double().norm()
    norm = clip(held, most)
    assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
    scale = min(1.0, most / (expected.item() + 1e-6))
    for grad, parameter in zip(before, held, strict=False):
        assert torch.allclose(parameter.grad, grad * scale, rtol=1e-5)


def test_plain_tensors_are_not_spread() -> None:
    held = parameters()
    assert spread(held[0]) == (None, ())
    assert local(held[0].grad) is held[0].grad
    assert squares([]).item() == 0
