"""Element-wise instructions against NumPy in fp32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trnt.kernels import sim
from trnt.kernels.sim import isa as nisa
from trnt.kernels.sim import language as nl

RNG = np.random.default_rng(1)
A, B = (RNG.standard_normal((32, 20)).astype(np.float32) for _ in range(2))
C = RNG.standard_normal((32, 1)).astype(np.float32)


def run(body: Any, *arrays: np.ndarray, dtype: str = "float32", shape: tuple[int, int] = (32, 20)) -> np.ndarray:
    """What `body(dst, *tiles)` writes."""

    def kernel(*inputs: Any) -> Any:
        tiles = [nl.load(x) for x in inputs]
        dst = nl.ndarray(shape, dtype=dtype)
        body(dst, *tiles)
        out = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=dst)
        return out

    from trnt.kernels.sim import subset

    subset_check, subset.check = subset.check, lambda function: None
    try:
        return sim.simulate(kernel)(*arrays)
    finally:
        subset.check = subset_check


def test_operators_of_two_tiles() -> None:
    for op, expected in ((nl.add, A + B), (nl.subtract, A - B), (nl.maximum, np.maximum(A, B)), (nl.less, A < B)):
        got = run(lambda d, a, b, op=op: nisa.tensor_tensor(dst=d, data1=a, data2=b, op=op), A, B)
        assert np.array_equal(got, np.asarray(expected, np.float32))


def test_two_operators_with_constants_and_columns_in_either_order() -> None:
    got = run(
        lambda d, a, c: nisa.tensor_scalar(
            dst=d, data=a, op0=nl.subtract, operand0=c, reverse0=True, op1=nl.multiply, operand1=2.0
        ),
        A,
        C,
    )
    assert np.array_equal(got, (C - A) * 2)


def test_scalar_and_tensor() -> None:
    got = run(
        lambda d, a, b, c: nisa.scalar_tensor_tensor(
            dst=d, data=a, op0=nl.add, operand0=c, op1=nl.multiply, operand1=b
        ),
        A,
        B,
        C,
    )
    assert np.array_equal(got, (A + C) * B)


def test_integers_go_through_fp32_on_the_vector_engine_and_are_exact_on_gpsimd() -> None:
    large = np.full((32, 20), 2**24, np.int32)
    one = np.ones((32, 20), np.int32)

    def add(engine: Any) -> Any:
        return lambda d, a, b: nisa.tensor_tensor(dst=d, data1=a, data2=b, op=nl.add, engine=engine)

    assert (run(add(nisa.engine.vector), large, one, dtype="int32") == 2**24).all()
    assert (run(add(nisa.engine.gpsimd), large, one, dtype="int32") == 2**24 + 1).all()
    assert (run(add(nisa.engine.unknown), large, one, dtype="int32") == 2**24 + 1).all()


def test_bits() -> None:
    numbers = np.arange(640, dtype=np.int32).reshape(32, 20)
    got = run(
        lambda d, a: nisa.tensor_scalar(dst=d, data=a, op0=nl.bitwise_and, operand0=12, op1=nl.right_shift, operand1=2),
        numbers,
        dtype="int32",
    )
    assert np.array_equal(got, (numbers & 12) >> 2)


def test_activation_scales_and_adds_before_and_sums_after() -> None:
    def body(dst: Any, a: Any, c: Any) -> None:
        total = nl.ndarray((32, 1), dtype=nl.float32)
        full = nl.ndarray((32, 20), dtype=nl.float32)
        nisa.activation_reduce(dst=full, op=nl.exp, data=a, reduce_op=nl.add, reduce_res=total, bias=c, scale=0.5)
        nisa.tensor_scalar(dst=dst, data=full, op0=nl.subtract, operand0=total)

    full = np.exp(A * np.float32(0.5) + C)
    assert np.allclose(run(body, A, C), full - full.sum(1, keepdims=True), rtol=1e-6)


def test_sums_of_several_activations_stay_in_the_registers() -> None:
    def body(dst: Any, a: Any, b: Any) -> None:
        scratch = nl.ndarray((32, 20), dtype=nl.float32)
        commands = nisa.reduce_cmd
        nisa.activation(dst=scratch, op=nl.copy, data=a, reduce_op=nl.add, reduce_cmd=commands.reset_reduce)
        nisa.activation(dst=scratch, op=nl.square, data=b, reduce_op=nl.add, reduce_cmd=commands.reduce, reduce_res=dst)

    got = run(body, A, B, shape=(32, 1))
    assert np.allclose(got[:, 0], A.sum(1) + (B * B).sum(1), rtol=1e-5)


def test_the_result_is_rounded_once() -> None:
    got = run(lambda d, a, b: nisa.tensor_tensor(dst=d, data1=a, data2=b, op=nl.multiply), A, B, dtype="bfloat16")
    assert np.array_equal(got, (A * B).astype(ml_dtypes.bfloat16))


def test_copies_are_exact_and_memset_fills() -> None:
    numbers = np.full((32, 20), 2**24 + 1, np.int32)
    assert np.array_equal(run(lambda d, a: nisa.tensor_copy(dst=d, src=a), numbers, dtype="int32"), numbers)
    assert (run(lambda d: nisa.memset(dst=d, value=2.5)) == 2.5).all()
    assert np.allclose(run(lambda d, a: nisa.reciprocal(dst=d, data=a), A), 1 / A)


def test_trn1_has_no_copy_on_the_scalar_engine_and_no_constant_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    with pytest.raises(sim.Refused) as caught:
        run(lambda d, a: nisa.tensor_copy(dst=d, src=a, engine=nisa.engine.scalar), A)
    assert caught.value.rule == "engine"
    with pytest.raises(sim.Refused, match="constant bias"):
        run(lambda d, a: nisa.activation(dst=d, op=nl.exp, data=a, bias=1.0), A)
