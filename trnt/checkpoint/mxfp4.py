"""MXFP4 experts read as bf16, piece by piece (OCP Microscaling Formats 1.0; GPT-OSS's release).

`<name>_blocks` U8 [E, out, in / 32, 16] holds two numbers a byte, the low half first: sign, two bits of exponent, one
of mantissa (E2M1). `<name>_scales` U8 [E, out, in / 32] is an exponent per 32 numbers: a value is its number times
2^(scale - 127), 255 is NaN. Every product is exact in bf16.
"""

from __future__ import annotations

import functools
from typing import Any

from trnt.checkpoint.source import Info, Source
from trnt.checkpoint.wrapped import Wrapped

BLOCKS, SCALES = "_blocks", "_scales"
NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
EACH = 32  # numbers of a block


class Mxfp4(Wrapped):
    """`source` with its packed experts as bf16 [E, out, in], under their names without `_blocks`."""

    def __init__(self, source: Source) -> None:
        self.packed = sorted(name.removesuffix(BLOCKS) for name in source.tensors if name.endswith(BLOCKS))
        hidden = {name + end for name in self.packed for end in (BLOCKS, SCALES)}
        seen = {name: info for name, info in source.tensors.items() if name not in hidden}
        for name in self.packed:
            shape = source.tensors[name + BLOCKS].shape
            seen[name] = Info("BF16", (*shape[:-2], shape[-2] * EACH) if len(shape) == 4 else shape)
        super().__init__(source, seen)

    def file_of(self, name: str) -> str:
        return self.source.file_of(name + BLOCKS if name in self.packed else name)

    @property
    def note(self) -> str:
        """What to tell the user."""
        return f"{len(self.packed)} mxfp4 weights are read as bf16 (one scale for each {EACH})"

    def stored(self, name: str) -> tuple[str, ...]:
        """The tensors of the files that a weight is made of; none for one that is not packed."""
        return (name + BLOCKS, name + SCALES) if name in self.packed else ()

    def problems(self) -> list[str]:
        """What is missing, misshapen or wrongly typed."""
        found = []
        for name in self.packed:
            blocks, scales = self.source.tensors[name + BLOCKS], self.source.tensors.get(name + SCALES)
            if blocks.dtype != "U8" or len(blocks.shape) != 4 or blocks.shape[-1] != EACH // 2:
                found.append(f"{name}{BLOCKS} is {blocks.dtype} {list(blocks.shape)}, not U8 [E, out, in / 32, 16]")
            elif scales is None:
                found.append(f"{name}{BLOCKS} has no {SCALES}")
            elif scales.dtype != "U8" or scales.shape != blocks.shape[:-1]:
                found.append(f"{name}{SCALES} is {scales.dtype} {list(scales.shape)}, not U8 {list(blocks.shape[:-1])}")
        return found

    def read(self, name: str, first: int, out: memoryview) -> None:
        """Fill `out` with bf16 values; whole blocks are read."""
        if name not in self.packed:
            self.source.read(name, first, out)
            return
        import torch

        count = len(out) // 2
        begin, end = first // EACH, -(-(first + count) // EACH)
        raw, exponents = bytearray((end - begin) * EACH // 2), bytearray(end - begin)
        self.source.read(name + BLOCKS, begin * EACH // 2, memoryview(raw))
        self.source.read(name + SCALES, begin, memoryview(exponents))
        pairs = _pairs()[torch.frombuffer(raw, dtype=torch.uint8).int()]
        scales = _powers()[torch.frombuffer(exponents, dtype=torch.uint8).int()]
        values = pairs.view(-1, EACH) * scales[:, None]
        found = values.view(-1)[first - begin * EACH :][:count]
        out[:] = found.view(torch.uint8).numpy().data


@functools.cache
def _pairs() -> Any:
    """Byte -> its two numbers, bf16 [256, 2]."""
    import torch

    numbers = torch.tensor(NUMBERS, dtype=torch.bfloat16)
    byte = torch.arange(256)
    return torch.stack([numbers[byte & 15], numbers[byte >> 4]], 1)


@functools.cache
def _powers() -> Any:
    """Scale byte -> 2^(scale - 127), bf16 [256]; 2^-127 is subnormal and exact, 255 is NaN."""
    import torch

    powers = torch.ldexp(torch.ones(256, dtype=torch.float64), torch.arange(256) - 127)
    powers[255] = torch.nan
    return powers.bfloat16()
