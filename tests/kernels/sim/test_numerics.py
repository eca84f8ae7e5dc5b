"""Rounding is the hardware's: to nearest even, once, on the way out."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from trnt.kernels.sim import numerics

VALUES = np.array([0.0, 1.0, 1.00390625, 1.01171875, -3.14159, 65504, 1e-40, 3.4e38, np.inf, -np.inf], np.float32)


def test_bf16_rounds_as_torch_does() -> None:
    expected = torch.from_numpy(VALUES).bfloat16().float().numpy()
    assert np.array_equal(numerics.down(VALUES, "bfloat16").astype(np.float32), expected)


@pytest.mark.parametrize(("name", "twin"), [("float8_e5m2", torch.float8_e5m2), ("float8_e4m3fn", torch.float8_e4m3fn)])
def test_fp8_rounds_as_torch_does_inside_its_range(name: str, twin: torch.dtype) -> None:
    values = np.linspace(-400, 400, 4001, dtype=np.float32)
    expected = torch.from_numpy(values).to(twin).float().numpy()
    assert np.array_equal(numerics.down(values, name).astype(np.float32), expected)


def test_ties_go_to_even() -> None:
    # bf16 has 7 bits of mantissa: 1 + 2^-8 lies halfway between 1 and 1 + 2^-7, 1 + 3 x 2^-8 between odd and even.
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    assert numerics.down(values, "bfloat16").astype(np.float32).tolist() == [1.0, 1 + 2**-6]


def test_floats_to_integers_round_to_even_and_saturate() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, 300, -300, 1e12, np.nan], np.float32)
    assert numerics.down(values, "int8").tolist() == [0, 2, 2, 0, 127, -128, 127, 0]
    assert numerics.down(values, "uint8").tolist() == [0, 2, 2, 0, 255, 0, 255, 0]
    assert numerics.down(values[6:7], "int32").tolist() == [2**31 - 1]


def test_tf32_keeps_ten_bits_of_the_mantissa() -> None:
    assert numerics.tf32(np.array([1 + 2**-10], np.float32)).tolist() == [1 + 2**-10]
    assert numerics.tf32(np.array([1 + 2**-11], np.float32)).tolist() == [1.0]
    assert np.isnan(numerics.tf32(np.array([np.nan], np.float32))).all()


def test_sizes_and_names() -> None:
    assert numerics.size("bfloat16") == 2
    assert numerics.NAMES[np.dtype(ml_dtypes.bfloat16)] == "bfloat16"
    assert {numerics.size(d) for d in numerics.FP8} == {1}
