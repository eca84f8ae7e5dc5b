"""Matrix products and transposes: nc_matmul, nc_transpose."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from trnt.kernels.sim import numerics
from trnt.kernels.sim.machine import EMPTY, MATMUL, machine
from trnt.kernels.sim.operands import chosen, count, engine, instruction, tile
from trnt.kernels.sim.refusal import refuse
from trnt.kernels.sim.tensor import NkiTensor


class matmul_perf_mode(Enum):
    none = "none"
    double_row = "double_row"


def one_bank(dst: NkiTensor) -> None:
    """Raises Refused when the view crosses a bank."""
    core = machine().core
    size = numerics.size(dst.dtype)
    per_partition = int(np.prod(dst.storage.shape[1:]))
    begin = dst.offset % per_partition
    end = begin + sum((n - 1) * s for n, s in zip(dst.shape[1:], dst.strides[1:], strict=True))
    base = dst.storage.address[1] if dst.storage.address else 0
    first, last = (base + begin * size) // core.psum_bank_bytes, (base + (end + 1) * size - 1) // core.psum_bank_bytes
    if first != last:
        refuse("bank", f"dst of {list(dst.shape)} {dst.dtype} spans the PSUM banks {first} to {last}")


def adds(dst: NkiTensor, accumulate: Any) -> bool:
    """Whether the product is added to what is there."""
    storage = dst.storage
    assert storage.by_matmul is not None
    assert storage.state is not None
    written = dst._array(storage.state) != EMPTY
    ours = dst._array(storage.by_matmul) == MATMUL
    if accumulate is None:
        if not written.any():
            return False
        if not (written & ours).all():
            refuse("accumulate", "dst is written in part, or by something that is no matmul")
        return True
    if accumulate and not (written & ours).all():
        refuse("accumulate", "accumulate=True onto PSUM that no matmul has begun")
    return bool(accumulate)


@instruction
def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: Any = matmul_perf_mode.none,
    name: str | None = None,
) -> None:
    """dst [M, N] = stationary [K, M].T @ moving [K, N], summed in fp32."""
    core = machine().core
    tile(dst, "dst", ("psum",))
    tile(stationary, "stationary", ("sbuf",))
    tile(moving, "moving", ("sbuf",))
    if perf_mode is not matmul_perf_mode.none or tile_position or tile_size:
        refuse("supported", "perf_mode, tile_position and tile_size: only the whole array")
    if stationary.free > core.stationary_max:
        refuse("stationary", f"stationary of {stationary.free} columns: at most {core.stationary_max}")
    if moving.free > core.moving_max:
        refuse("moving", f"moving of {moving.free} columns: at most {core.moving_max}")
    if stationary.shape[0] != moving.shape[0] or (dst.shape[0], dst.free) != (stationary.free, moving.free):
        refuse(
            "contraction",
            f"stationary {list(stationary.shape)}, moving {list(moving.shape)}, dst {list(dst.shape)}",
        )
    for what, value in (("stationary", stationary), ("moving", moving)):
        if value.dtype not in numerics.MATMUL:
            refuse("dtype", f"{what} is {value.dtype}: fp8, bf16, fp16, tf32 or fp32")
    wide = {"float32", "tfloat32"}
    if (stationary.dtype in wide) != (moving.dtype in wide):
        refuse("dtype", f"{stationary.dtype} with {moving.dtype}: fp32 or tf32 on one side demands it on the other")
    if is_transpose:
        if dst.dtype != stationary.dtype:
            refuse("dtype", f"a transpose of {stationary.dtype} into {dst.dtype}")
    elif dst.dtype != "float32" and not (dst.dtype == "bfloat16" and core.generation >= 4):
        refuse("dtype", f"dst is {dst.dtype}: float32")
    one_bank(dst)
    left = numerics.up(stationary.read()).reshape(stationary.shape[0], -1)
    right = numerics.up(moving.read()).reshape(moving.shape[0], -1)
    product = left.T @ right
    if adds(dst, accumulate):
        product += dst.values().reshape(product.shape).astype(np.float32, copy=False)
    dst.write(product, by_matmul=True)
    count("nc_matmul", "tensor", moving)


@instruction
def nc_transpose(dst: NkiTensor, data: NkiTensor, engine: Any = engine.unknown, name: str | None = None) -> None:
    """dst [free, partitions] = data [partitions, free].T, bit for bit."""
    big = data.shape[0] > 32 or data.free > 32
    default = "tensor" if data.buffer == "sbuf" and dst.buffer == "psum" else "vector"
    which = chosen(engine, default, ("tensor", "vector"))
    if which == "tensor":
        tile(data, "data", ("sbuf",))
        tile(dst, "dst", ("psum",))
        if data.free > 128:
            refuse("transpose_size", f"{list(data.shape)} on the tensor engine: at most [128, 128]")
        one_bank(dst)
    else:
        tile(data, "data")
        tile(dst, "dst")
        if big:
            refuse("transpose_size", f"{list(data.shape)} on the vector engine: at most [32, 32]")
    if data.dtype != dst.dtype:
        refuse("dtype", f"a transpose of {data.dtype} into {dst.dtype}")
    if (dst.shape[0], dst.free) != (data.free, data.shape[0]):
        refuse("shape", f"a transpose of {list(data.shape)} into {list(dst.shape)}")
    dst.write(data.read().reshape(data.shape[0], -1).T)
    count("nc_transpose", which, data)
