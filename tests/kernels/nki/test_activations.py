"""The activations on tiles against torch's autograd in float64, clamps included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trnt.kernels.nki.activations import activate, derivatives, keep
from trnt.kernels.nki.api import nisa, nki, nl

LIMIT = 7.0


@nki.jit
def kernel(gate, up, p, act):
    """h forward; from what is kept h again, dg, du and p h."""
    shape = gate.shape
    sums = []
    for source in (gate, up, p):
        tile = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
        nisa.tensor_copy(dst=tile, src=nl.load(source))
        sums.append(tile)
    made = []
    for _ in range(7):
        made.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf))
    h, g, u, again, dg, du, ph = made
    activate(h, sums[0], sums[1], None, None, act, 7.0, False)
    keep(g, sums[0], None, act, 7.0, False, False)
    keep(u, sums[1], None, act, 7.0, False, True)
    derivatives(again, dg, du, ph, g, u, sums[2], act, 7.0)
    found = []
    for tile in (h, again, dg, du, ph):
        out = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        found.append(out)
    return tuple(found)


@pytest.mark.parametrize("act", ["silu", "clamped"])
def test_forward_and_derivatives(act: str) -> None:
    rng = np.random.default_rng(0)
    gate, up, p = (5 * rng.standard_normal((24, 32)).astype(np.float32) for _ in range(3))
    assert (np.abs(up) > LIMIT).any()
    assert (gate > LIMIT).any()
    h, again, dg, du, ph = (np.asarray(out) for out in kernel(gate, up, p, act))
    g, u = (torch.tensor(t, dtype=torch.float64, requires_grad=True) for t in (gate, up))
    if act == "silu":
        expected = torch.nn.functional.silu(g) * u
    else:
        low, both = g.clamp(max=LIMIT), u.clamp(-LIMIT, LIMIT)
        expected = low * torch.sigmoid(1.702 * low) * (both + 1)
    wanted = torch.autograd.grad(expected, (g, u), torch.tensor(p, dtype=torch.float64))
    for got, value in (
        (h, expected),
        (again, expected),
        (dg, wanted[0]),
        (du, wanted[1]),
        (ph, p * expected.detach().numpy()),
    ):
        value = value.detach().numpy() if isinstance(value, torch.Tensor) else value
        assert np.allclose(got, value, rtol=1e-5, atol=1e-4)  # fp32, values up to 100
