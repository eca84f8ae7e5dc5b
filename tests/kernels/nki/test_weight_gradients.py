"""Weight gradients of one expert in a kernel of their own: written, added to, and strided as GPT-OSS keeps them."""

from __future__ import annotations

import numpy as np
import pytest

from trnt.kernels.nki.api import nisa, nki, nl
from trnt.kernels.nki.plan import P
from trnt.kernels.nki.weight_gradients import of_biases, of_weights


@nki.jit
def kernel(left, right, which, spread, begin, twice):
    """dw[which] = left^T right, in rows begin, begin + spread, ...; db[which] the sums of left; twice: both doubled."""
    T, F = left.shape
    D = right.shape[1]
    dw = nl.ndarray((2, spread * F, D), dtype=nl.float32, buffer=nl.shared_hbm)
    db = nl.ndarray((2, spread * F), dtype=nl.float32, buffer=nl.shared_hbm)
    e = nisa.register_alloc()
    nisa.register_load(e, which[0:1, 0])
    lefts, rights, ones = [], [], []
    for t in range(T // P):
        lefts.append(nl.load(left[t * P : (t + 1) * P, :]))
        rights.append(nl.load(right[t * P : (t + 1) * P, :]))
        ones.append(nl.ones((P, 1), dtype=nl.float32))
    for adding in (False, True) if twice else (False,):
        of_weights(dw, e, spread, begin, lefts, rights, F, adding)
        of_biases(db, e, spread, begin, ones, lefts, F, adding)
    return dw, db


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(("spread", "begin"), [(1, 0), (2, 0), (2, 1)])
@pytest.mark.parametrize(("F", "D"), [(40, 30), (200, 600)])
def test_the_gradients_of_one_expert(twice: bool, spread: int, begin: int, F: int, D: int) -> None:
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((2 * P, n)).astype(np.float32) for n in (F, D))
    dw, db = kernel(left, right, np.array([[1]], np.int32), spread, begin, twice)
    times = 2 if twice else 1
    # sums of 256 products of order 1 in fp32: each errs by about sqrt(256) 2^-24 of 16
    assert np.allclose(np.asarray(dw)[1, begin::spread], times * left.T.astype(np.float64) @ right, atol=1e-4)
    assert np.allclose(np.asarray(db)[1, begin::spread], times * left.sum(0), atol=1e-4)
