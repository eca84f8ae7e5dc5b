"""Products and transposes against NumPy, and the accumulation of PSUM."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from trnt.kernels import sim
from trnt.kernels.sim import isa as nisa
from trnt.kernels.sim import language as nl

RNG = np.random.default_rng(0)


@sim.jit
def product(left, right, times, flags):
    a, b = nl.load(left), nl.load(right)
    sums = nl.ndarray((left.shape[1], right.shape[1]), dtype=nl.float32, buffer=nl.psum)
    for i in range(times):
        nisa.nc_matmul(dst=sums, stationary=a, moving=b, accumulate=flags[i])
    result = nl.ndarray((left.shape[1], right.shape[1]), dtype=nl.float32)
    nisa.tensor_copy(dst=result, src=sums)
    out = nl.ndarray((left.shape[1], right.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result)
    return out


@pytest.mark.parametrize(("flags", "count"), [((None, None, None), 3), ((False, True, True), 3), ((False, False), 1)])
def test_products_add_up_in_psum(flags: tuple[bool | None, ...], count: int) -> None:
    # Whole numbers are exact in fp32, so the sum is too.
    a, b = (RNG.integers(-8, 8, (96, n)).astype(np.float32) for n in (40, 200))
    assert np.array_equal(product(a, b, len(flags), flags), count * (a.T @ b))


def test_bf16_operands_are_multiplied_exactly_and_summed_in_fp32() -> None:
    a, b = (RNG.standard_normal((128, n)).astype(ml_dtypes.bfloat16) for n in (16, 32))
    exact = a.astype(np.float64).T @ b.astype(np.float64)
    # 128 additions in fp32 of values of about 1: 128 x 2^-24 x a few.
    assert np.allclose(product(a, b, 1, (None,)), exact, atol=1e-4)


@sim.jit
def transposed(rows):
    tile = nl.load(rows)
    bank = nl.ndarray((rows.shape[1], rows.shape[0]), dtype=rows.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=tile)
    result = nl.ndarray((rows.shape[1], rows.shape[0]), dtype=rows.dtype)
    nisa.tensor_copy(dst=result, src=bank)
    out = nl.ndarray((rows.shape[1], rows.shape[0]), dtype=rows.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result)
    return out


def test_a_transpose_is_exact_also_for_infinities() -> None:
    rows = RNG.standard_normal((128, 70)).astype(ml_dtypes.bfloat16)
    rows[3, 4] = np.inf
    assert np.array_equal(transposed(rows), rows.T)
