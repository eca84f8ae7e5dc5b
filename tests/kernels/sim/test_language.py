"""Loops, and the experimental functions that make their own tiles."""

from __future__ import annotations

import numpy as np
import pytest

from trnt.kernels import sim
from trnt.kernels.sim import isa as nisa
from trnt.kernels.sim import language as nl

ROWS = np.random.default_rng(5).standard_normal((16, 12)).astype(np.float32)


@sim.jit
def functions(rows):
    x = nl.load(rows)
    y = nl.add(nl.exp(x), 1.0)
    y = nl.multiply(y, x)
    total = nl.sum(y, axis=1, keepdims=True)
    wide = nl.broadcast_to(total, rows.shape)
    out = nl.ndarray(rows.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nl.store(out, value=nl.subtract(y, wide))
    return out


def test_functions_on_tiles() -> None:
    y = (np.exp(ROWS) + 1) * ROWS
    # A sum of 12 fp32 numbers in another order.
    assert np.allclose(functions(ROWS), y - y.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)


@sim.jit
def while_it_counts(rows, steps):
    """The condition is loaded anew in each trip."""
    total = nl.zeros((1, 12), nl.float32)
    going = nisa.register_alloc(1)
    at = nisa.register_alloc(0)

    def body(register):
        nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=1.0)
        nisa.register_load(register, steps[0:1])
        nisa.register_load(at, steps[1:2])

    nl.while_loop(going, body)
    out = nl.ndarray((1, 12), dtype=nl.float32, buffer=nl.shared_hbm)
    nl.store(out, value=total)
    return out


def test_a_while_loop_ends_at_zero() -> None:
    assert (while_it_counts(ROWS, np.array([0, 5], np.int32)) == 1).all()


@sim.jit
def unrolled():
    seen = []
    for i in nl.static_range(2, 8, 3):
        seen.append(i)
    assert seen == [2, 5]
    assert nl.num_programs() == 1
    assert nl.program_id(0) == 0
    assert nl.tile_size.pmax == 128
    assert nl.tile_size.sbuf_fmax_bytes == 212_464
    assert nl.is_hbm(nl.shared_hbm)


def test_unrolled_loops_and_sizes() -> None:
    unrolled()


def test_there_is_no_division() -> None:
    with pytest.raises(sim.Refused, match="multiply by the reciprocal"):
        nl.divide  # noqa: B018
