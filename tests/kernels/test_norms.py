"""2-norms that are right, however long the tensor."""

from __future__ import annotations

import pytest
import torch

from trnt.kernels import norms


@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 4097, 100_003, 3_000_000])
def test_the_norm_is_the_one_of_fp64(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    values = torch.randn(count, generator=generator) * torch.rand(count, generator=generator) ** 4 * 1e-3
    expected = values.double().norm().item()
    # 4,096 squares in one fp32 sum, then fp64: a few units of 6e-8
    assert norms.total([norms.of_rows(values)]).item() == pytest.approx(expected, rel=5e-7)
    halves = [norms.of_rows(part) for part in values.split(max(1, count // 2))]
    assert norms.total(halves).item() == pytest.approx(expected, rel=5e-7)


def test_nothing_has_the_norm_zero_and_bf16_is_summed_in_fp32() -> None:
    assert norms.total([]).item() == 0
    values = torch.full((10_000,), 1.0).bfloat16()
    assert norms.total([norms.of_rows(values)]).item() == pytest.approx(100.0, rel=1e-6)
