"""How an optimizer keeps a moment between steps: fp32, bf16, or 8 bits in blocks. All from and to fp32.

8 bits: a block of up to 256 neighbours in a row shares one fp32 scale, its largest magnitude. The first moment is kept
as 127 (|m| / scale)^(1/4) with the sign of m (int8), the second as 255 (v / scale)^(1/4), at least 1 (uint8): the root
spreads 8 bits over eight or nine decades, where linear codes would lose all but two and divide by zero. Both are
rounded at random, up or down with the odds that keep the mean: rounded to the nearest, a value whose decay is
smaller than half a code would never decay. The odds come from one tile of noise, shifted by (step, place), so that a
resumed run rounds as one that was never stopped. Blocks and scales as in 8-bit optimizers (arXiv 2110.02861).
"""

from __future__ import annotations

import torch

STATES = ("fp32", "bf16", "8bit")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BLOCK = 256
SMALLEST = 4096  # elements; a smaller tensor keeps fp32 moments, which costs nothing
_noise: dict[torch.device, torch.Tensor] = {}
NOISE = 1 << 20
HIGHEST = {torch.int8: 127.0, torch.uint8: 255.0}


def block_of(shape: torch.Size | tuple[int, ...]) -> int:
    """Elements that share a scale: the largest power of two up to 256 that divides the last dimension."""
    last = shape[-1]
    return min(BLOCK, last & -last)


def kind_for(shape: torch.Size | tuple[int, ...], states: str) -> str:
    """How the moments of a tensor of this shape are kept when `states` is asked for."""
    size = 1
    for length in shape:
        size *= length
    if len(shape) < 2 or size < SMALLEST:
        return "fp32"
    return "bf16" if states == "8bit" and block_of(shape) < 32 else states


def noise(device: torch.device, count: int, place: int) -> torch.Tensor:
    """(count,) fp32 in [-0.5, 0.5), the same for the same place."""
    if device not in _noise:
        generator = torch.Generator().manual_seed(0x5EED)
        _noise[device] = (torch.rand(NOISE, generator=generator) - 0.5).to(device)
    tile = _noise[device]
    begin = (place * 2654435761) % (NOISE - count)  # Knuth's multiplicative hash
    return tile[begin : begin + count]


def decode(codes: torch.Tensor, scale: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
    """A stored moment as fp32, in `out` (n,). int8 is the first moment, uint8 the second."""
    out.copy_(codes)
    if scale is not None:
        if codes.dtype == torch.uint8:
            out.square_().square_()
        else:
            out.mul_(out.abs())
            out.mul_(out.abs())
        out.view(len(scale), -1).mul_((scale / HIGHEST[codes.dtype] ** 4)[:, None])
    return out


def encode(value: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor | None, place: int) -> None:
    """Store fp32 `value` (n,) in `codes`, and its blocks' scales; `value` is used up."""
    if scale is not None:
        highest = HIGHEST[codes.dtype]
        blocks = value.view(len(scale), -1)
        low, high = torch.aminmax(blocks, dim=1)
        torch.maximum(high, low.neg_(), out=scale)
        blocks.mul_((highest**4 / scale.clamp(min=1e-28))[:, None])
        if codes.dtype == torch.uint8:
            value.clamp_(min=0).sqrt_().sqrt_()
            lowest = 1.0
        else:
            value.copy_(value.abs().sqrt_().sqrt_().copysign_(value))
            lowest = -highest
        value.add_(noise(value.device, len(value), place)).round_().clamp_(lowest, highest)
    codes.copy_(value)
