"""The dtypes of weights: safetensors' code, torch's name, bytes. No torch at import."""

from __future__ import annotations

from typing import Any

# safetensors code -> (torch's name, bytes): https://github.com/huggingface/safetensors, and torch's own dtypes.
DTYPES: dict[str, tuple[str, int]] = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U64": ("uint64", 8),
    "U32": ("uint32", 4),
    "U16": ("uint16", 2),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
    "C64": ("complex64", 8),
}
CODES = {name: code for code, (name, _) in DTYPES.items()}
# What a checkpoint may be written in; casts are between these only.
FLOATS = {"F64", "F32", "F16", "BF16"}
WANTED = ("float32", "bfloat16", "float16")  # the words of --dtype


def size_of(code: str) -> int:
    """Bytes of one value."""
    return DTYPES[code][1]


def torch_dtype(code: str) -> Any:
    """The torch dtype of a code."""
    import torch

    return getattr(torch, DTYPES[code][0])


def code_of(dtype: Any) -> str:
    """The code of a torch dtype or of its name. Raises KeyError for a dtype that safetensors does not have."""
    return CODES[str(dtype).removeprefix("torch.")]


def cast_to(source: str, wanted: str | None) -> str:
    """The code that a tensor is written in: `wanted` (a code) for floating-point weights, else its own."""
    return wanted if wanted is not None and source in FLOATS else source
