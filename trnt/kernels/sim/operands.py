"""What every instruction checks of its operands, and how an instruction is counted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from trnt.kernels.sim import numerics
from trnt.kernels.sim.machine import machine
from trnt.kernels.sim.ops import Op
from trnt.kernels.sim.refusal import Site, refuse
from trnt.kernels.sim.registers import VirtualRegister
from trnt.kernels.sim.tensor import NkiTensor


class engine(Enum):
    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class NkiInstruction:
    """What an instruction returns: something to be ordered by."""

    def depends_on(self, other: Any) -> None:
        if not isinstance(other, NkiInstruction):
            refuse("supported", f"depends_on({type(other).__name__}): another instruction")


def instruction(function: Callable[..., None]) -> Callable[..., NkiInstruction]:
    """Counts the call and names it in refusals."""

    @functools.wraps(function)
    def issued(*args: Any, **options: Any) -> NkiInstruction:
        outer, Site.instruction = Site.instruction, function.__name__
        try:
            machine().now += 1
            machine().accesses.clear()
            function(*args, **options)
        except TypeError as error:
            if "argument" not in str(error):
                raise
            refuse("supported", str(error))
        finally:
            Site.instruction = outer
        return NkiInstruction()

    return issued


def tile(value: Any, what: str, memories: tuple[str, ...] = ("sbuf", "psum")) -> NkiTensor:
    """A tile on chip that an engine may reach. Raises Refused otherwise."""
    if not isinstance(value, NkiTensor):
        refuse("shape", f"{what} is a {type(value).__name__}, not a tensor")
    if value.buffer not in memories:
        refuse("memory", f"{what} is in {value.buffer}: only {' or '.join(memories)}")
    if value.rows is not None:
        refuse("dma", f"{what} is picked by an index: only a DMA does that")
    count = value.shape[0]
    start = value.offset // max(1, int(np.prod(value.storage.shape[1:])))
    start += value.storage.address[0] if value.storage.address else 0
    allowed = (0,) if count > 64 else (0, 64) if count > 32 else (0, 32, 64, 96)
    if start not in allowed:
        refuse("start_partition", f"{what} of {count} partitions begins at partition {start}")
    if free_dims(value) > 4:
        refuse("free_dims", f"{what} of shape {list(value.shape)} needs {free_dims(value)} free dimensions")
    return value


def free_dims(value: NkiTensor) -> int:
    """Free dimensions left after merging those that lie together."""
    dims = [(n, s) for n, s in zip(value.shape[1:], value.strides[1:], strict=True) if n > 1]
    merged = [dims[-1]] if dims else []
    for size, stride in reversed(dims[:-1]):
        inner_size, inner_stride = merged[-1]
        if stride == inner_size * inner_stride:
            merged[-1] = (size * inner_size, inner_stride)
        else:
            merged.append((size, stride))
    return max(1, len(merged))


def same(a: NkiTensor, b: NkiTensor, what: str) -> None:
    """Equal partitions, and equal elements in each."""
    if a.shape[0] != b.shape[0] or a.free != b.free:
        refuse("shape", f"{what}: {list(a.shape)} and {list(b.shape)}")


def chosen(asked: Any, default: str, allowed: tuple[str, ...]) -> str:
    """The engine that runs the instruction."""
    name = default if asked in (engine.unknown, None) else asked.name
    if name not in allowed:
        refuse("engine", f"on the {name} engine: only {', '.join(allowed)}")
    return name


def reach(name: str, *tiles: NkiTensor) -> None:
    """gpsimd never reaches PSUM."""
    if name == "gpsimd" and any(t.buffer == "psum" for t in tiles):
        refuse("memory", "the gpsimd engine has no way to PSUM")


def two_psum(a: Any, b: Any) -> None:
    if isinstance(a, NkiTensor) and isinstance(b, NkiTensor) and a.buffer == b.buffer == "psum":
        refuse("two_psum", "both inputs are in PSUM")


def flat(value: NkiTensor) -> np.ndarray:
    """(partitions, elements) in fp32, as an engine reads a tile."""
    return numerics.up(value.read()).reshape(value.shape[0], -1)


def column(value: Any, rows: int, what: str, *, fp32: bool = True) -> Any:
    """A constant, or (P, 1) values from a tile."""
    if isinstance(value, VirtualRegister):
        refuse("dynamic", f"{what} is a register: a constant or a (P, 1) tile")
    if not isinstance(value, NkiTensor):
        if not isinstance(value, (int, float, np.floating, np.integer)):
            refuse("shape", f"{what} is a {type(value).__name__}: a constant or a (P, 1) tile")
        return np.float32(value)
    tile(value, what)
    if value.shape[0] != rows or value.free != 1:
        refuse("shape", f"{what} of shape {list(value.shape)}: ({rows}, 1)")
    if fp32 and value.dtype != "float32":
        refuse("dtype", f"{what} is {value.dtype}: float32")
    return flat(value)


def operator(op: Any, kinds: tuple[str, ...]) -> Op:
    if not isinstance(op, Op):
        name = getattr(op, "__name__", op)
        refuse("supported", f"the operator {name}: only those of nki.language that the device has")
    if op.kind not in kinds:
        refuse("supported", f"the operator {op}: the instruction takes {' or '.join(kinds)}")
    return op


def count(name: str, engine_name: str, value: NkiTensor) -> None:
    machine().issue(name, engine_name, value.shape[0], value.free, value.dtype)
