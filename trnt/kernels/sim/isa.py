"""`nki.isa` as far as it is interpreted. Names and argument order are the public stubs' (SDK 2.32, NKI 0.6)."""

from __future__ import annotations

from enum import Enum
from typing import Any

from trnt.kernels.sim.along import (
    affine_select,
    iota,
    nc_stream_shuffle,
    select_reduce,
    tensor_copy_predicated,
    tensor_reduce,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)
from trnt.kernels.sim.dma import dge_mode, dma_compute, dma_copy, dma_transpose, oob_mode
from trnt.kernels.sim.elementwise import (
    activation,
    activation_reduce,
    memset,
    reciprocal,
    reduce_cmd,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_scalar,
    tensor_tensor,
)
from trnt.kernels.sim.machine import machine
from trnt.kernels.sim.operands import NkiInstruction, engine, instruction
from trnt.kernels.sim.refusal import refuse
from trnt.kernels.sim.registers import VirtualRegister, number
from trnt.kernels.sim.search import max8, nc_find_index8, nc_match_replace8, nc_n_gather, nearest
from trnt.kernels.sim.tensor import NkiTensor, scalar
from trnt.kernels.sim.tensor_engine import matmul_perf_mode, nc_matmul, nc_transpose


class nc_version(Enum):
    gen2 = 2
    gen3 = 3
    gen4 = 4


tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine = engine.gpsimd, engine.unknown


def get_nc_version() -> nc_version:
    """The core that the kernel is specialised for."""
    return nc_version(machine().core.generation)


def register_alloc(x: int | None = None) -> VirtualRegister:
    """A register, empty or with a constant."""
    if x is not None and not isinstance(x, int):
        refuse("dynamic", f"register_alloc({type(x).__name__}): a constant; register_load takes a tensor")
    return VirtualRegister(x)


@instruction
def register_move(dst: VirtualRegister, src: Any) -> None:
    """dst = a constant or another register."""
    dst.write(number(src))


@instruction
def register_load(dst: VirtualRegister, src: NkiTensor) -> None:
    """dst = the one integer of src, in HBM or SBUF."""
    if not isinstance(src, NkiTensor) or src.buffer == "psum":
        refuse("memory", "a register is loaded from HBM or SBUF")
    dst.write(scalar(src))


@instruction
def register_store(dst: NkiTensor, src: VirtualRegister) -> None:
    """dst, of one element, = the register."""
    import numpy as np

    if dst.size != 1:
        refuse("shape", f"a register into {dst}: one element")
    dst.write(np.full(dst.shape, number(src), np.int64))


def core_barrier(data: NkiTensor, cores: Any, engine: Any = engine.gpsimd, name: str | None = None) -> None:
    """Refused: there is one core here."""
    refuse("lnc", "core_barrier: one physical core")


def sendrecv(src: Any, dst: Any, send_to_rank: Any, recv_from_rank: Any, pipe_id: Any, name: str | None = None) -> None:
    """Refused: there is one core here."""
    refuse("lnc", "sendrecv: one physical core")


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return nearest(name)


__all__ = [
    "NkiInstruction",
    "VirtualRegister",
    "activation",
    "activation_reduce",
    "affine_select",
    "core_barrier",
    "dge_mode",
    "dma_compute",
    "dma_copy",
    "dma_transpose",
    "engine",
    "get_nc_version",
    "iota",
    "matmul_perf_mode",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nc_version",
    "oob_mode",
    "reciprocal",
    "reduce_cmd",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
]
