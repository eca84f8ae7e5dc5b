"""Instructions that work element by element or along the free axes, on the vector, scalar and gpsimd engines."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from trnt.kernels.sim import numerics
from trnt.kernels.sim.machine import machine
from trnt.kernels.sim.operands import (
    chosen,
    column,
    count,
    engine,
    flat,
    instruction,
    operator,
    reach,
    same,
    tile,
    two_psum,
)
from trnt.kernels.sim.ops import OPS, Op
from trnt.kernels.sim.refusal import refuse
from trnt.kernels.sim.tensor import NkiTensor

THREE = ("vector", "scalar", "gpsimd")


class reduce_cmd(Enum):
    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


def quiet() -> Any:
    """Infinities and NaNs are values here, as on the engines."""
    return np.errstate(all="ignore")


@instruction
def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: Any = engine.unknown, name: str | None = None) -> None:
    """dst = src; bit for bit when the dtypes are equal, else through fp32."""
    which = chosen(engine, "vector", THREE)
    tile(dst, "dst")
    tile(src, "src")
    reach(which, dst, src)
    if which == "scalar" and machine().core.generation == 2:
        refuse("engine", "tensor_copy on trn1's scalar engine: use activation(op=nl.copy)")
    same(dst, src, "dst and src")
    values = src.read()
    dst.write(values if dst.dtype == src.dtype else numerics.up(values))
    count("tensor_copy", which, dst)


@instruction
def memset(dst: NkiTensor, value: Any, engine: Any = engine.unknown, name: str | None = None) -> None:
    """dst = value everywhere."""
    which = chosen(engine, "vector", ("vector", "gpsimd"))
    tile(dst, "dst")
    reach(which, dst)
    if dst.dtype in numerics.INTEGERS and isinstance(value, float):
        refuse("dtype", f"the float {value} into {dst.dtype}")
    dst.write(np.full(dst.shape, value, np.int64 if dst.dtype in numerics.INTEGERS else np.float32))
    count("memset", which, dst)


@instruction
def tensor_tensor(
    dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Any, engine: Any = engine.unknown, name: str | None = None
) -> None:
    """dst = data1 op data2. fp32 inside, also for integers, unless all are 32-bit integers on gpsimd."""
    op = operator(op, ("binary", "bitvec"))
    for what, value in (("dst", dst), ("data1", data1), ("data2", data2)):
        tile(value, what)
    two_psum(data1, data2)
    same(dst, data1, "dst and data1")
    same(data1, data2, "data1 and data2")
    whole = all(t.dtype in ("int32", "uint32") for t in (dst, data1, data2))
    psum = any(t.buffer == "psum" for t in (dst, data1, data2))
    default = "gpsimd" if op.name == "power" or (whole and not psum) else "vector"
    which = chosen(engine, default, ("vector", "gpsimd"))
    if op.name == "power" and which != "gpsimd":
        refuse("engine", "nl.power runs on the gpsimd engine")
    reach(which, dst, data1, data2)
    shape = (dst.shape[0], dst.free)
    with quiet():
        if op.kind == "bitvec":
            integers(op, dst, data1, data2)
            result = op.compute(data1.read().reshape(shape), data2.read().reshape(shape))
        elif whole and which == "gpsimd":
            wide = (t.read().astype(np.int64).reshape(shape) for t in (data1, data2))
            result = op.compute(*wide).astype(np.int64)
        else:
            result = op.compute(flat(data1), flat(data2))
    dst.write(result)
    count("tensor_tensor", which, dst)


def integers(op: Op, *tiles: NkiTensor) -> None:
    for value in tiles:
        if value.dtype not in numerics.INTEGERS:
            refuse("dtype", f"{op} of {value.dtype}: integers, bit for bit")


def apply(op: Any, data: np.ndarray, operand: Any, reverse: bool) -> np.ndarray:
    return op.compute(operand, data) if reverse else op.compute(data, operand)


@instruction
def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = engine.unknown,
    name: str | None = None,
) -> None:
    """dst = (data op0 operand0) op1 operand1; operands are constants or (P, 1) float32."""
    tile(dst, "dst")
    tile(data, "data")
    same(dst, data, "dst and data")
    steps = [(operator(op0, ("binary", "bitvec")), operand0, reverse0)]
    if op1 is not None:
        steps.append((operator(op1, ("binary", "bitvec")), operand1, reverse1))
    which = chosen(engine, "vector", THREE)
    reach(which, dst, data)
    kinds = {op.kind for op, _, _ in steps}
    if len(kinds) > 1:
        refuse("supported", f"{op0} with {op1}: both arithmetic or both bit by bit")
    if which == "scalar" and [op.name for op, _, _ in steps] not in (["multiply", "add"], ["multiply"], ["add"]):
        refuse(
            "engine", f"{[op.name for op, _, _ in steps]} on the scalar engine: multiply, add, or both in this order"
        )
    with quiet():
        if kinds == {"bitvec"}:
            if which != "vector":
                refuse("engine", f"{op0} on the {which} engine: only vector")
            integers(steps[0][0], dst, data)
            result = data.read().reshape(data.shape[0], -1)
            for op, operand, reverse in steps:
                result = apply(op, result, np.asarray(operand, result.dtype), reverse)
        else:
            result = flat(data)
            for position, (op, operand, reverse) in enumerate(steps):
                result = apply(op, result, column(operand, data.shape[0], f"operand{position}"), reverse)
    dst.write(result)
    count("tensor_scalar", which, dst)


@instruction
def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> None:
    """dst = (data op0 operand0) op1 operand1; operand0 a constant or (P, 1), operand1 a tile."""
    for what, value in (("dst", dst), ("data", data), ("operand1", operand1)):
        tile(value, what)
    two_psum(data, operand1)
    same(dst, data, "dst and data")
    same(data, operand1, "data and operand1")
    first, second = operator(op0, ("binary",)), operator(op1, ("binary",))
    with quiet():
        result = apply(first, flat(data), column(operand0, data.shape[0], "operand0", fp32=False), reverse0)
        result = apply(second, result, flat(operand1), reverse1)
    dst.write(result)
    count("scalar_tensor_tensor", "vector", dst)


@instruction
def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = reduce_cmd.idle,
    name: str | None = None,
) -> None:
    """dst = op(data * scale + bias) on the scalar engine; its sums along the free axes stay in registers."""
    op = operator(op, ("activation",))
    tile(dst, "dst")
    tile(data, "data")
    same(dst, data, "dst and data")
    rows = data.shape[0]
    if bias is not None and not isinstance(bias, NkiTensor) and machine().core.generation == 2:
        refuse("shape", "a constant bias: trn1 takes a (P, 1) tile")
    with quiet():
        result = flat(data) * column(scale, rows, "scale")
        if bias is not None:
            result = result + column(bias, rows, "bias", fp32=False)
        result = np.asarray(op.compute(result), np.float32)
    dst.write(result)
    sums(result, reduce_op, reduce_res, reduce_cmd)
    count("activation", "scalar", dst)


def sums(result: np.ndarray, reduce_op: Any, reduce_res: NkiTensor | None, command: Any) -> None:
    """The scalar engine's 128 registers."""
    run = machine()
    if command in (reduce_cmd.reset, reduce_cmd.reset_reduce):
        run.scalar_sums = np.zeros(run.core.partitions, np.float32)
    if command in (reduce_cmd.reduce, reduce_cmd.reset_reduce):
        if operator(reduce_op, ("binary",)).name != "add":
            refuse("supported", f"a reduction by {reduce_op}: only nl.add")
        if run.scalar_sums is None:
            refuse("unwritten", "a reduction onto registers that were never reset")
        run.scalar_sums[: len(result)] += result.sum(1, dtype=np.float32)
    if reduce_res is not None:
        tile(reduce_res, "reduce_res")
        if run.scalar_sums is None or reduce_res.free != 1:
            refuse("shape", "reduce_res: (P, 1), after a reduction")
        reduce_res.write(run.scalar_sums[: reduce_res.shape[0], None])


@instruction
def activation_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> None:
    """activation with its sums along the free axes."""
    activation.__wrapped__(dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd.reset_reduce)  # type: ignore[attr-defined]


@instruction
def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> None:
    """dst = 1 / data on the vector engine."""
    tile(dst, "dst")
    tile(data, "data")
    same(dst, data, "dst and data")
    with quiet():
        dst.write(OPS["reciprocal"].compute(flat(data)))
    count("reciprocal", "vector", dst)
