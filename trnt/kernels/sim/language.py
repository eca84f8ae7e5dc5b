"""`nki.language` as far as it is interpreted: dtypes, memories, loops, and the experimental functions on tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from trnt import console
from trnt.kernels.sim import along, dma, elementwise, numerics, ops
from trnt.kernels.sim.machine import machine
from trnt.kernels.sim.refusal import refuse
from trnt.kernels.sim.registers import VirtualRegister, number
from trnt.kernels.sim.tensor import DynamicSlice, NkiTensor, whole

for _name in numerics.DTYPES:
    globals()["bool_" if _name == "bool" else _name] = _name
globals().update(ops.OPS)
sbuf, psum, private_hbm, shared_hbm = "sbuf", "psum", "private_hbm", "shared_hbm"
hbm = private_hbm
ds = DynamicSlice


class NKIObject:
    """Base of the classes that a kernel may pass around."""


class _TileSize(NKIObject):
    pmax = 128
    psum_fmax = psum_bank_fmax = 512
    psum_bank_fmax_bytes = 2048
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    psum_num_banks = 8

    @property
    def sbuf_fmax_bytes(self) -> int:
        return machine().core.sbuf_usable

    @property
    def sbuf_fmax(self) -> int:
        return self.sbuf_fmax_bytes // 4

    total_available_sbuf_size = sbuf_fmax_bytes

    @property
    def sbuf_size_bytes(self) -> int:
        return machine().core.sbuf_bytes * 128


tile_size = _TileSize()


def is_hbm(buffer: str) -> bool:
    return buffer in (private_hbm, shared_hbm)


def is_on_chip(buffer: str) -> bool:
    return buffer in (sbuf, psum)


def ndarray(shape: Any, dtype: str, buffer: str = sbuf, name: str = "", address: Any = None) -> NkiTensor:
    """A new tensor; what it holds is undefined, and reading it is refused."""
    if any(isinstance(n, VirtualRegister) for n in shape):
        refuse("dynamic", "a shape with a register in it")
    return whole(machine().allocate(tuple(shape), dtype, buffer, name, address))


def full(shape: Any, fill_value: Any, dtype: str, buffer: str = sbuf, name: str = "") -> NkiTensor:
    made = ndarray(shape, dtype, buffer, name)
    elementwise.memset(dst=made, value=fill_value)
    return made


def zeros(shape: Any, dtype: str, buffer: str = sbuf, name: str = "") -> NkiTensor:
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Any, dtype: str, buffer: str = sbuf, name: str = "") -> NkiTensor:
    return full(shape, 1, dtype, buffer, name)


def load(src: NkiTensor, dtype: str | None = None) -> NkiTensor:
    """A tile in SBUF with what src holds."""
    made = ndarray(src.shape, dtype or src.dtype)
    dma.dma_copy(dst=made, src=src)
    return made


def store(dst: NkiTensor, value: NkiTensor) -> None:
    dma.dma_copy(dst=dst, src=value)


def broadcast_to(x: NkiTensor, shape: Any, dtype: str | None = None) -> NkiTensor:
    """x repeated along its dimensions of size 1; the partition by a copy (its lowering is not published)."""
    if len(shape) != x.ndim or any(n not in (1, want) for n, want in zip(x.shape, shape, strict=True)):
        refuse("shape", f"broadcast_to {tuple(shape)} of {list(x.shape)}")
    made = ndarray(shape, dtype or x.dtype)
    made.write(np.broadcast_to(numerics.up(x.read()), made.shape))
    machine().now += 1
    return made


def shared_identity_matrix(n: int, dtype: str = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """An identity matrix in SBUF: the moving operand of a transpose."""
    made = ndarray((n, n), dtype) if dst is None else dst
    made.write(np.eye(n, dtype=np.float32))
    return made


# Loops ---------------------------------------------------------------------------------------------------------


def _numbers(args: tuple[Any, ...], what: str) -> range:
    if any(isinstance(a, VirtualRegister) for a in args):
        refuse("dynamic", f"{what} over a register: use nl.fori_loop")
    return range(*args)


def static_range(start: Any, stop: Any = None, step: int = 1) -> range:
    """Unrolled."""
    return _numbers((0, start, step) if stop is None else (start, stop, step), "static_range")


def affine_range(start: Any, stop: Any = None, step: int = 1) -> Any:
    """Unrolled, in any order: the interpreter turns it round when asked to check that."""
    steps = static_range(start, stop, step)
    return reversed(steps) if machine().reverse else steps


sequential_range = static_range


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: int = 1) -> None:
    """A run-time loop: the body once per trip, its index a register."""
    if not isinstance(step, int) or step < 1:
        refuse("dynamic", f"a step of {step}: a positive constant")
    run = machine()
    with run.loop() as loop:
        for index in range(number(lower), number(upper), step):
            if body_fun(VirtualRegister(index, frozen=True)) is not None:
                refuse("escape", "the body of a run-time loop returns something")
            run.end_trip(loop)


def while_loop(init: VirtualRegister, body_fun: Callable[[Any], Any]) -> None:
    """Runs the body while the register is not 0."""
    run = machine()
    with run.loop() as loop:
        while init.read():
            body_fun(init)
            run.end_trip(loop)


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Any:
    refuse("supported", "nl.dynamic_range is deprecated; the closest: nl.fori_loop")


@contextmanager
def no_reorder() -> Iterator[None]:
    """Program order, which the interpreter keeps anyway."""
    yield


def program_id(axis: int = 0) -> int:
    return 0


def num_programs(axes: Any = 0) -> int:
    return 1


def program_ndim() -> int:
    return 1


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    console.note(f"{print_prefix} {tensor.values()}")


# Experimental functions ----------------------------------------------------------------------------------------


def _call(op: ops.Op, *args: Any, dtype: str | None = None) -> NkiTensor:
    """`nl.add(x, y)`, `nl.exp(x)`: a new tile, and the instruction that fills it."""
    tiles = [a for a in args if isinstance(a, NkiTensor)]
    if not tiles:
        refuse("shape", f"{op} without a tile")
    made = ndarray(tiles[0].shape, dtype or tiles[0].dtype)
    if op.kind == "activation":
        elementwise.activation(dst=made, op=op, data=args[0])
    elif len(tiles) == 2 and tiles[0].shape == tiles[1].shape:
        elementwise.tensor_tensor(dst=made, data1=args[0], data2=args[1], op=op)
    else:
        reverse = not isinstance(args[0], NkiTensor)
        data, other = (args[1], args[0]) if reverse else args
        elementwise.tensor_scalar(dst=made, data=data, op0=op, operand0=other, reverse0=reverse)
    return made


ops.Op.call = staticmethod(_call)


def _reduction(op: str) -> Callable[..., NkiTensor]:
    def reduced(x: NkiTensor, axis: Any, dtype: str | None = None, keepdims: bool = False) -> NkiTensor:
        axes = [a + x.ndim if a < 0 else a for a in ([axis] if isinstance(axis, int) else axis)]
        kept = [1 if d in axes else n for d, n in enumerate(x.shape)]
        shape = kept if keepdims else [n for d, n in enumerate(x.shape) if d not in axes]
        made = ndarray(shape if len(shape) > 1 else [*shape, 1], dtype or x.dtype)
        along.tensor_reduce(dst=made, op=ops.OPS[op], data=x, axis=tuple(axes))
        return made

    return reduced


sum, max, min, prod = (_reduction(op) for op in ("add", "maximum", "minimum", "multiply"))


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    if name in ops.MISSING_ON_DEVICE:
        refuse("supported", f"nl.{name}: no instruction does it; multiply by the reciprocal")
    refuse("supported", f"nl.{name} is not interpreted")
