"""Quantised weights read as bf16, piece by piece: fp8 with a scale per block here, MXFP4 in `checkpoint/mxfp4.py`.

DeepSeek-V3's release: a weight F8_E4M3 [r, c] with `<name>_scale_inv` F32 [ceil(r / 128), ceil(c / 128)]; a value is
the fp8 number times the scale of its block, in fp32, rounded once to bf16 (as `weight_dequant` of the published
inference code and transformers' Fp8Dequantize do).
"""

from __future__ import annotations

import functools
from typing import Any

from trnt.checkpoint.dtypes import size_of
from trnt.checkpoint.mxfp4 import Mxfp4
from trnt.checkpoint.source import Info, Source, refuse
from trnt.checkpoint.transposed import transposed
from trnt.checkpoint.wrapped import Wrapped
from trnt.errors import TrntError

SUFFIX = "_scale_inv"
FP8, SCALE, OUT = "F8_E4M3", "F32", "BF16"
SCALES = 64  # tensors whose scales are kept: a weight is read piece by piece, by a few threads


class Dequantised(Wrapped):
    """`source` with its fp8 weights as bf16 and without their scales. block: (rows, columns) of one scale."""

    def __init__(self, source: Source, block: tuple[int, int]) -> None:
        self.scaled = {name for name, info in source.tensors.items() if info.dtype == FP8}
        hidden = {name + SUFFIX for name in self.scaled}
        seen = {
            name: Info(OUT, info.shape) if name in self.scaled else info
            for name, info in source.tensors.items()
            if name not in hidden
        }
        super().__init__(source, seen)
        self.block = block
        self.scales = functools.lru_cache(SCALES)(lambda name: source.tensor(name + SUFFIX))

    def read(self, name: str, first: int, out: memoryview) -> None:
        """Fill `out` with bf16 values; whole rows are read, as a row's blocks belong together."""
        if name not in self.scaled:
            self.source.read(name, first, out)
            return
        import torch

        columns = self.tensors[name].shape[-1]
        count = len(out) // size_of(OUT)
        begin, end = first // columns, -(-(first + count) // columns)
        raw = bytearray((end - begin) * columns)
        self.source.read(name, begin * columns, memoryview(raw))
        values = torch.frombuffer(raw, dtype=torch.float8_e4m3fn).view(-1, columns).float()
        scales = self.scales(name)[torch.arange(begin, end) // self.block[0]]
        values *= scales.repeat_interleave(self.block[1], dim=1)[:, :columns]
        found = values.bfloat16().view(-1)[first - begin * columns :][:count]
        out[:] = found.view(torch.uint8).numpy().data

    @property
    def note(self) -> str:
        """What to tell the user."""
        rows, columns = self.block
        return f"{len(self.scaled)} fp8 weights are read as bf16 (one scale for each {rows} x {columns})"

    def stored(self, name: str) -> tuple[str, ...]:
        """The tensors of the files that a weight is made of; none for one that is not quantised."""
        return (name, name + SUFFIX) if name in self.scaled else ()

    def problems(self) -> list[str]:
        """Weights whose scale is missing or misshapen."""
        found = []
        for name in sorted(self.scaled):
            scale, shape = self.source.tensors.get(name + SUFFIX), self.tensors[name].shape
            wanted = tuple(-(-n // b) for n, b in zip(shape, self.block, strict=False))
            if scale is None:
                found.append(f"{name} is fp8 and has no {SUFFIX}")
            elif len(shape) != 2 or scale.shape != wanted or scale.dtype != SCALE:
                found.append(f"{name}{SUFFIX} is {scale.dtype} {list(scale.shape)}, not {SCALE} {list(wanted)}")
        return found


def quantised(source: Source) -> Dequantised | Mxfp4 | None:
    """The wrapper through which a source's quantised weights are seen, whatever is around it; None where none is."""
    while isinstance(source, Wrapped):
        if isinstance(source, Dequantised | Mxfp4):
            return source
        source = source.source
    return None


def dequantised(source: Source, config: dict[str, Any]) -> tuple[Source, dict[str, Any], list[str]]:
    """(the source read as bf16, config.json without its quantisation, what to tell the user); else all as it was.

    Raises TrntError for another method than block-scaled fp8 and mxfp4, and for every weight whose scale is missing or
    misshapen.
    """
    told = config.get("quantization_config")
    if not told:
        return source, config, []
    method, block = told.get("quant_method", "unknown"), told.get("weight_block_size")
    found: Dequantised | Mxfp4
    if method == "fp8" and block and source.kind == "hf":
        found = Dequantised(source, (int(block[0]), int(block[1])))
    elif method == "mxfp4" and source.kind == "hf":
        found = Mxfp4(source)
    else:
        raise TrntError(
            f"{source.path} is quantised ({method}), which trnt does not read", "use the bf16 release of the model"
        )
    refuse(source.path, found.problems(), "download the files again")
    rest = {key: value for key, value in config.items() if key != "quantization_config"}
    # Unpacked, mxfp4 is [E, out, in]; the names are those of bf16 files, which hold [E, in, out].
    seen = transposed(found, found.packed) if isinstance(found, Mxfp4) else found
    return seen, rest, [found.note]
