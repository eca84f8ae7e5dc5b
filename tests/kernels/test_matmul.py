"""Both libraries give the same products, for the layouts that kernels hand them."""

from __future__ import annotations

import pytest
import torch

from trnt.kernels import matmul


@pytest.mark.parametrize("tokens", [1, 7, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("large", [True, False])
def test_products_are_the_plain_ones(tokens: int, dtype: torch.dtype, large: bool) -> None:
    rows, columns = (256, 1024) if large else (24, 40)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, columns, generator=generator).to(dtype)
    y = torch.randn(tokens, rows, generator=generator).to(dtype)
    weight = torch.randn(rows, columns, generator=generator).to(dtype)
    assert matmul.fast(weight) == (large and dtype == torch.float32)
    # sums of up to 1,024 terms of size 1 in another order: 1e-5 relative to the largest
    for got, expected in (
        (matmul.times_transposed(x, weight), x @ weight.T),
        (matmul.times(y, weight), y @ weight),
        (matmul.transposed_times(y, x), y.T @ x),
        (matmul.transposed_times(y[:, 3:20], x), y[:, 3:20].T @ x),
    ):
        assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_the_same_bits_every_time() -> None:
    x, weight = torch.randn(64, 1024), torch.randn(512, 1024)
    assert torch.equal(matmul.times_transposed(x, weight), matmul.times_transposed(x, weight))
