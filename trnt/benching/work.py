"""What a case is: inputs, a reference, and who computes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from trnt.benching.sizes import Sizes

Outputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Work:
    """One implementation of a case on given inputs."""

    run: Callable[[], Any]
    """What is timed."""
    outputs: Callable[[], Outputs]
    """What `run` has computed last."""
    prepare: Callable[[], Any] | None = None
    """What goes before each call and is not timed."""


@dataclass(frozen=True)
class Case:
    """One thing to measure; `names.CASES` says what it is."""

    inputs: Callable[[Sizes, str, torch.dtype], SimpleNamespace]
    """The inputs from (sizes, device, dtype)."""
    expected: Callable[[SimpleNamespace], Outputs]
    kernels: Mapping[str, Callable[[SimpleNamespace], Work]]
    """Who computes it, by the names of `names.CASES`."""
    flops: Callable[[Sizes], float]
    moved: Callable[[Sizes, int], float]
    """Bytes that have to be read and written at least, from the sizes and bytes per element."""
    terms: Callable[[Sizes], int]
    """Terms of the longest sum, for the error that is allowed."""
    exact: bool = False
    """Whether outputs must be equal to the bit."""
    roundings: Callable[[Sizes], int] = lambda sizes: 6
    """How often a value is rounded on its way, at most."""
    scratch: Callable[[Sizes], float] = lambda sizes: 0.0
    """Bytes that the reference takes beside tensors of the case's own sizes."""

    def allowed(self, dtype: torch.dtype, sizes: Sizes) -> float:
        """The error that is allowed, as a share of the root mean square."""
        return 0.0 if self.exact else allowed(dtype, self.terms(sizes), self.roundings(sizes))

    def memory(self, sizes: Sizes) -> float:
        """Bytes at the most, about: inputs and outputs, once computed and once as the reference has them in fp32."""
        return 2.2 * self.moved(sizes, 4) + self.scratch(sizes)


def tile(shape: tuple[int, ...], dtype: torch.dtype, device: str, scale: float, seed: int) -> torch.Tensor:
    """Random numbers of variance scale^2: a million of them, over and over. No two experts come out alike."""
    count = math.prod(shape)
    length = min(count, 1_048_573)  # a prime
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(length, generator=generator).mul_(scale).to(dtype)
    return base.repeat(-(-count // length))[:count].view(shape).to(device)


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as something that gradients are asked of."""
    return tensor.detach().requires_grad_()


def allowed(dtype: torch.dtype, terms: int, roundings: int = 6) -> float:
    """The error of a result allowed, as a share of its root mean square.

    Two fp32 sums of n numbers in different orders differ by about sqrt(n) 2^-24 each, and by a few units for the
    functions between. bf16: each value is rounded to 2^-9 of itself, `roundings` times in a row.
    """
    if dtype == torch.float32:
        return 2 * (8 + terms**0.5) * 2**-24
    return roundings**0.5 * 2**-9


def differences(got: Outputs, expected: Outputs) -> tuple[float, float]:
    """(root mean square of the error over that of the expected value, largest error over largest value), the worst."""
    worst = largest = 0.0
    for name, value in expected.items():
        value = value.float()
        error = got[name].to(value.device).float() - value
        worst = max(worst, share(error.square().mean().sqrt(), value.square().mean().sqrt()))
        largest = max(largest, share(error.abs().max(), value.abs().max()))
    return worst, largest


def share(error: torch.Tensor, size: torch.Tensor) -> float:
    """error / size; infinite for a NaN, which max() would drop, depending on the order."""
    return (error / size.clamp(min=1e-30)).nan_to_num(math.inf, posinf=math.inf).item()
