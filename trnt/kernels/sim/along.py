"""Instructions along the free axes: reductions, scans, patterns, and choices by predicate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trnt.kernels.sim import numerics
from trnt.kernels.sim.elementwise import apply, integers, quiet, reduce_cmd
from trnt.kernels.sim.operands import column, count, flat, instruction, operator, same, tile, two_psum
from trnt.kernels.sim.ops import OPS
from trnt.kernels.sim.refusal import refuse
from trnt.kernels.sim.tensor import NkiTensor, spread


@instruction
def tensor_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> None:
    """dst = op over the last free axes of data."""
    op = operator(op, ("binary", "bitvec"))
    if op.reduce is None:
        refuse("supported", f"a reduction by {op}")
    tile(dst, "dst")
    tile(data, "data")
    axes = tuple(a + data.ndim if a < 0 else a for a in ((axis,) if isinstance(axis, int) else axis))
    if 0 in axes or sorted(axes) != list(range(data.ndim - len(axes), data.ndim)):
        refuse("shape", f"axes {axes} of a tile of {data.ndim} dimensions: the last free ones")
    kept = math.prod(data.shape[1 : data.ndim - len(axes)])
    if dst.shape[0] != data.shape[0] or dst.free != kept:
        refuse("shape", f"{list(data.shape)} reduced over {axes} into {list(dst.shape)}")
    with quiet():
        if op.kind == "bitvec":
            integers(op, dst, data)
            result = op.reduce(data.read().reshape(data.shape[0], kept, -1), axis=2)
        else:
            result = op.reduce(numerics.up(data.read()).reshape(data.shape[0], kept, -1), axis=2)
            result = -result if negate else result
    dst.write(result)
    count("tensor_reduce", "vector", data)


@instruction
def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: Any = reduce_cmd.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> None:
    """dst = data op0 operand0, and its reduction along the free axes into reduce_res."""
    tile(dst, "dst")
    tile(data, "data")
    same(dst, data, "dst and data")
    if reduce_init is not None or reduce_res_negate or reduce_cmd.name != "reset_reduce":
        refuse("supported", "reduce_init, reduce_res_negate, other reduce_cmd: only reset_reduce")
    fold = operator(reduce_op, ("binary",))
    if fold.reduce is None:
        refuse("supported", f"a reduction by {fold}")
    with quiet():
        operand = column(operand0, data.shape[0], "operand0")
        result = apply(operator(op0, ("binary",)), flat(data), operand, reverse0)
        dst.write(result)
        if reduce_res is not None:
            tile(reduce_res, "reduce_res")
            reduce_res.write(fold.reduce(result, axis=1)[:, None])
    count("tensor_scalar_reduce", "vector", dst)


@instruction
def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> None:
    """dst[i] = (data0[i] op0 dst[i-1]) op1 data1[i], from `initial` on."""
    for what, value in (("dst", dst), ("data0", data0), ("data1", data1)):
        tile(value, what)
    two_psum(data0, data1)
    same(data0, data1, "data0 and data1")
    same(dst, data0, "dst and data0")
    first, second = operator(op0, ("binary",)), operator(op1, ("binary",))
    a, b = flat(data0), flat(data1)
    out = np.empty_like(a)
    state = np.broadcast_to(column(initial, data0.shape[0], "initial", fp32=False), (len(a), 1))[:, 0]
    with quiet():
        for i in range(a.shape[1]):
            state = apply(first, a[:, i], state, reverse0)
            state = apply(second, state, b[:, i], reverse1)
            out[:, i] = state
    dst.write(out)
    count("tensor_tensor_scan", "vector", dst)


@instruction
def iota(dst: NkiTensor, pattern: Any, offset: int = 0, channel_multiplier: int = 0, name: str | None = None) -> None:
    """dst[p, w, z, y, x] = offset + p * channel_multiplier + w * step_w + ..."""
    tile(dst, "dst", ("sbuf",))
    if len(pattern) > 4 or math.prod(n for _, n in pattern) != dst.free:
        refuse("shape", f"a pattern of {pattern} for {list(dst.shape)}")
    dst.write(affine(dst.shape[0], pattern, offset, channel_multiplier))
    count("iota", "gpsimd", dst)


def affine(rows: int, pattern: Any, offset: int, channel_multiplier: int) -> np.ndarray:
    return offset + np.arange(rows)[:, None] * channel_multiplier + spread(pattern)


@instruction
def affine_select(
    dst: NkiTensor,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Any = OPS["equal"],
    offset: int = 0,
    name: str | None = None,
) -> None:
    """dst = on_true_tile where (the affine value cmp_op 0), else on_false_value."""
    tile(dst, "dst", ("sbuf",))
    tile(on_true_tile, "on_true_tile", ("sbuf",))
    same(dst, on_true_tile, "dst and on_true_tile")
    values = affine(dst.shape[0], pattern, offset, channel_multiplier)
    chosen = operator(cmp_op, ("binary",)).compute(values, 0).astype(bool)
    dst.write(np.where(chosen, flat(on_true_tile), np.float32(on_false_value)))
    count("affine_select", "gpsimd", dst)


@instruction
def tensor_copy_predicated(
    dst: NkiTensor, src: Any, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None
) -> None:
    """dst = src where predicate; the rest of dst stays."""
    tile(dst, "dst")
    tile(predicate, "predicate")
    same(dst, predicate, "dst and predicate")
    if predicate.dtype not in ("uint8", "uint16", "uint32"):
        refuse("dtype", f"predicate is {predicate.dtype}: uint8, uint16 or uint32")
    mask = (predicate.read().reshape(dst.shape) != 0) ^ reverse_pred
    if isinstance(src, NkiTensor):
        tile(src, "src")
        two_psum(src, predicate)
        same(dst, src, "dst and src")
        if src.dtype != dst.dtype:
            refuse("dtype", f"src is {src.dtype}, dst {dst.dtype}: one dtype")
        values = src.read().reshape(dst.shape)
    else:
        values = numerics.down(np.full(dst.shape, src, np.float32), dst.dtype)
    dst.write(np.where(mask, values, dst.read()))
    count("tensor_copy_predicated", "vector", dst)


@instruction
def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = reduce_cmd.idle,
    reduce_op: Any = OPS["maximum"],
    reverse_pred: bool = False,
    name: str | None = None,
) -> None:
    """dst = on_true where predicate, else on_false (a constant or (P, 1)); with the maximum of each row if asked."""
    for what, value in (("dst", dst), ("predicate", predicate), ("on_true", on_true)):
        tile(value, what)
    two_psum(predicate, on_true)
    same(dst, on_true, "dst and on_true")
    same(dst, predicate, "dst and predicate")
    if predicate.dtype not in ("int8", "uint8", "int16", "uint16"):
        refuse("dtype", f"predicate is {predicate.dtype}: int8, uint8, int16 or uint16")
    if on_true.dtype in ("int32", "uint32", "tfloat32"):
        refuse("dtype", f"on_true is {on_true.dtype}")
    mask = (predicate.read().reshape(dst.shape[0], -1) != 0) ^ reverse_pred
    result = np.where(mask, flat(on_true), column(on_false, dst.shape[0], "on_false", fp32=False))
    dst.write(result)
    if reduce_res is not None:
        tile(reduce_res, "reduce_res")
        if reduce_cmd.name != "reset_reduce" or operator(reduce_op, ("binary",)).name != "maximum":
            refuse("supported", "reduce_res with another command than reset_reduce, or another operator than maximum")
        reduce_res.write(result.max(1, keepdims=True))
    count("select_reduce", "vector", dst)


@instruction
def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: str | None = None) -> None:
    """Within each 32 partitions, dst[i] = src[shuffle_mask[i]]."""
    tile(dst, "dst")
    tile(src, "src")
    same(dst, src, "dst and src")
    if len(shuffle_mask) != 32 or src.shape[0] % 32:
        refuse("shape", f"a mask of {len(shuffle_mask)} for {src.shape[0]} partitions: 32, and a multiple of 32")
    values = src.read()
    order = np.concatenate([np.asarray(shuffle_mask) + base for base in range(0, src.shape[0], 32)])
    dst.write(values[order])
    count("nc_stream_shuffle", "vector", dst)
