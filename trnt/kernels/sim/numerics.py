"""Dtypes of NKI in NumPy, and how values are rounded when they are written.

Engines compute in fp32 whatever their operands are, and round once, on the way out: floats to nearest even, floats to
integers to nearest even and saturated (NKI release notes 0.6). bf16 and fp8 are `ml_dtypes`' types, which round so.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, Any] = {
    "bool": np.dtype(np.bool_),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "tfloat32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "tfloat32"}
INTEGERS = {name for name in DTYPES if "int" in name}
FLOATS = set(DTYPES) - INTEGERS - {"bool"}
FP8 = {name for name in DTYPES if name.startswith("float8")}
MATMUL = {"float8_e4m3", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "tfloat32", "float32"}


def size(dtype: str) -> int:
    """Bytes of one element."""
    return DTYPES[dtype].itemsize


def up(array: np.ndarray) -> np.ndarray:
    """As the engines see it: fp32."""
    return array if array.dtype == np.float32 else array.astype(np.float32)


def tf32(array: np.ndarray) -> np.ndarray:
    """fp32 rounded to a mantissa of 10 bits, to nearest even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    kept = (bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
    finite = np.isfinite(array)
    return np.where(finite, kept.view(np.float32), array)


def down(array: np.ndarray, dtype: str) -> np.ndarray:
    """fp32 (or integer) values rounded as a write to `dtype` rounds them."""
    wanted = DTYPES[dtype]
    if dtype == "tfloat32":
        return tf32(up(array))
    if array.dtype == wanted:
        return array
    if dtype in INTEGERS:
        if array.dtype.kind in "iu":
            limits = np.iinfo(wanted)
            return np.clip(array.astype(np.int64), limits.min, limits.max).astype(wanted)
        limits = np.iinfo(wanted)
        wide = np.rint(up(array).astype(np.float64))
        return np.clip(np.nan_to_num(wide), limits.min, limits.max).astype(wanted)
    with np.errstate(over="ignore", invalid="ignore"):
        return up(array).astype(wanted) if wanted != np.float32 else up(array)
