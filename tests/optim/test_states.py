"""Eight bits hold a moment: unbiased, over decades, and never a zero divisor."""

from __future__ import annotations

import pytest
import torch

from trnt.optim import states


def round_trip(value: torch.Tensor, dtype: torch.dtype, place: int = 0) -> torch.Tensor:
    codes = torch.zeros(value.shape, dtype=dtype)
    scale = torch.zeros(len(value) // 256)
    states.encode(value.clone(), codes, scale, place)
    return states.decode(codes, scale, torch.empty_like(value))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_rounding_keeps_the_mean(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(1024, generator=generator)
    value = value if dtype == torch.int8 else value.square()
    mean = torch.stack([round_trip(value, dtype, place) for place in range(2000)]).mean(0)
    # 2,000 draws of at most half a code: the root of the value has steps of 1/127 or 1/255 of the largest root
    assert (mean - value).abs().max() < 0.004 * value.abs().max()


def test_the_second_moment_is_never_decoded_as_zero() -> None:
    value = torch.full((512,), 1e-20)
    value[0] = value[256] = 1.0
    found = round_trip(value, torch.uint8)
    assert found.min() > 0
    assert found[0] == pytest.approx(1.0, rel=0.01)


def test_small_values_beside_large_ones_keep_their_size() -> None:
    value = torch.logspace(-6, 0, 256)
    found = round_trip(value, torch.uint8)
    kept = value > 1e-5
    assert ((found / value)[kept] - 1).abs().max() < 0.3  # a code near 14 of 255 is a quarter of v


def test_zeros_stay_zeros() -> None:
    assert not round_trip(torch.zeros(256), torch.int8).any()
    assert not round_trip(torch.zeros(256), torch.uint8).any()


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((2048, 768), "8bit"), ((8, 64, 192), "8bit"), ((2048,), "fp32"), ((16, 16), "fp32"), ((100, 100), "bf16")],
)
def test_which_tensors_are_reduced(shape: tuple[int, ...], kind: str) -> None:
    assert states.kind_for(shape, "8bit") == kind


def test_noise_is_the_same_for_the_same_place() -> None:
    device = torch.device("cpu")
    assert torch.equal(states.noise(device, 100, 5), states.noise(device, 100, 5))
    assert not torch.equal(states.noise(device, 100, 5), states.noise(device, 100, 6))
