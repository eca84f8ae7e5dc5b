"""Reductions, scans, patterns and choices against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trnt.kernels.sim import isa as nisa
from trnt.kernels.sim import language as nl
from trnt.kernels.sim import subset

RNG = np.random.default_rng(2)
A, B = (RNG.standard_normal((32, 20)).astype(np.float32) for _ in range(2))


@pytest.fixture(autouse=True)
def _any_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """These kernels are closures of the test."""
    monkeypatch.setattr(subset, "check", lambda function: None)


def run(body: Any, *arrays: np.ndarray, dtype: str = "float32", shape: tuple[int, ...] = (32, 20)) -> np.ndarray:
    from trnt.kernels import sim

    def kernel(*inputs: Any) -> Any:
        dst = nl.ndarray(shape, dtype=dtype)
        body(dst, *[nl.load(x) for x in inputs])
        out = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=dst)
        return out

    return sim.simulate(kernel)(*arrays)


def test_reductions_over_the_last_axes() -> None:
    cube = RNG.standard_normal((8, 3, 4, 5)).astype(np.float32)
    got = run(lambda d, a: nisa.tensor_reduce(dst=d, op=nl.add, data=a, axis=(2, 3)), cube, shape=(8, 3))
    assert np.allclose(got, cube.sum((2, 3)), rtol=1e-6)
    got = run(
        lambda d, a: nisa.tensor_reduce(dst=d, op=nl.maximum, data=a, axis=-1, negate=True), cube, shape=(8, 3, 4)
    )
    assert np.array_equal(got, -cube.max(3))


def test_a_scan_goes_from_left_to_right() -> None:
    got = run(
        lambda d, a, b: nisa.tensor_tensor_scan(dst=d, data0=a, data1=b, initial=1.5, op0=nl.multiply, op1=nl.add),
        A,
        B,
    )
    state = np.full(32, 1.5, np.float32)
    for i in range(20):
        state = A[:, i] * state + B[:, i]
        assert np.array_equal(got[:, i], state)


def test_patterns() -> None:
    got = run(
        lambda d: nisa.iota(dst=d, pattern=[[100, 2], [1, 3]], offset=7, channel_multiplier=10),
        dtype="int32",
        shape=(4, 6),
    )
    assert got[2].tolist() == [27, 28, 29, 127, 128, 129]


def test_a_triangle_by_affine_select() -> None:
    # Element (p, x) has the value p - x: at least 0 on and below the diagonal.
    square = RNG.standard_normal((20, 20)).astype(np.float32)
    got = run(
        lambda d, a: nisa.affine_select(
            dst=d,
            pattern=[[-1, 20]],
            channel_multiplier=1,
            on_true_tile=a,
            on_false_value=-9.0,
            cmp_op=nl.greater_equal,
        ),
        square,
        shape=(20, 20),
    )
    assert np.array_equal(got, np.where(np.tril(np.ones((20, 20), bool)), square, -9))


def test_choices_by_predicate() -> None:
    mask = (A > 0).astype(np.uint8)

    def predicated(dst: Any, a: Any, b: Any, m: Any) -> None:
        nisa.tensor_copy(dst=dst, src=b)
        nisa.tensor_copy_predicated(dst=dst, src=a, predicate=m)

    assert np.array_equal(run(predicated, A, B, mask), np.where(mask, A, B))
    got = run(
        lambda d, a, m: nisa.select_reduce(dst=d, predicate=m, on_true=a, on_false=0.5, reverse_pred=True), A, mask
    )
    assert np.array_equal(got, np.where(mask, np.float32(0.5), A))


def test_a_reduction_beside_the_result() -> None:
    def body(dst: Any, a: Any) -> None:
        scratch = nl.ndarray((32, 20), dtype=nl.float32)
        nisa.tensor_scalar_reduce(dst=scratch, data=a, op0=nl.multiply, operand0=2.0, reduce_op=nl.add, reduce_res=dst)

    assert np.allclose(run(body, A, shape=(32, 1))[:, 0], (A * 2).sum(1), rtol=1e-5)


def test_shuffle_within_thirty_two_partitions() -> None:
    got = run(lambda d, a: nisa.nc_stream_shuffle(dst=d, src=a, shuffle_mask=[5] * 32), A)
    assert np.array_equal(got, np.repeat(A[5:6], 32, 0))
