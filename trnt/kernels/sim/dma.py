"""Transfers between HBM and the state buffer, with rows picked by index, added, or transposed."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from trnt.kernels.sim import numerics
from trnt.kernels.sim.machine import CLEARED, READ, WRITTEN, machine
from trnt.kernels.sim.operands import engine, instruction, operator
from trnt.kernels.sim.refusal import refuse
from trnt.kernels.sim.tensor import NkiTensor

AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


class dge_mode(Enum):
    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):
    error = 0
    skip = 1


def side(value: Any, what: str) -> NkiTensor:
    if not isinstance(value, NkiTensor):
        refuse("shape", f"{what} is a {type(value).__name__}, not a tensor")
    if value.buffer == "psum":
        refuse("memory", f"{what} is in PSUM: copy it to SBUF first")
    return value


def valid_rows(value: NkiTensor, mode: oob_mode) -> np.ndarray:
    """Which of the picked rows exist. Raises Refused for one that does not, unless it is to be skipped."""
    assert value.rows is not None
    index = value.rows.index
    valid = (index >= 0) & (index < value.rows.count)
    if mode is oob_mode.error and not valid.all():
        refuse("outside", f"row {int(index[~valid][0])} of {value.rows.count}: oob_mode.skip leaves such rows out")
    return valid


def grid(value: NkiTensor, flat: np.ndarray) -> tuple[np.ndarray, bool]:
    """(an array whose rows `index` picks, True), or (all places, False) where a row does not lie together."""
    assert value.rows is not None
    if value.ndim == 2 and value.strides[1] == 1 and value.offset + value.shape[1] <= value.rows.step:
        size = flat.itemsize
        shape = (value.rows.count, value.shape[1])
        return np.ndarray(shape, flat.dtype, flat, value.offset * size, (value.rows.step * size, size)), True
    return value.picked(), False


def take(value: NkiTensor, flat: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """(valid rows, elements) picked by index."""
    array, direct = grid(value, flat)
    assert value.rows is not None
    return array[value.rows.index[valid]] if direct else flat[array[valid]]


def put(value: NkiTensor, flat: np.ndarray, valid: np.ndarray, values: Any) -> None:
    array, direct = grid(value, flat)
    assert value.rows is not None
    if direct:
        array[value.rows.index[valid]] = values
    else:
        flat[array[valid]] = values


def read_rows(src: NkiTensor, valid: np.ndarray) -> np.ndarray:
    machine().used(src.storage, -1, writes=False)
    if src.storage.state is not None:
        state = take(src, src.storage.state, valid)
        if state.size and state.min() == 0:
            refuse("unwritten", f"gathers rows of {src}, made at {src.storage.where}, that were never written")
        put(src, src.storage.state, valid, np.where(state == WRITTEN, READ, state))
    return take(src, src.storage.data, valid)


def once(dst: NkiTensor, state: np.ndarray) -> None:
    """Raises Refused when a value that nobody has read is about to be overwritten in HBM."""
    if (state == WRITTEN).any():
        refuse("two_writers", f"writes over elements of {dst} that another transfer wrote and nothing has read")


def write_rows(dst: NkiTensor, valid: np.ndarray, values: np.ndarray, *, adding: bool) -> None:
    assert dst.rows is not None
    index = dst.rows.index[valid]
    if len(np.unique(index)) != len(index):
        refuse("duplicates", "two partitions write one row")
    machine().used(dst.storage, -1, writes=True)
    if dst.storage.state is not None:
        if not adding:
            once(dst, take(dst, dst.storage.state, valid))
        put(dst, dst.storage.state, valid, WRITTEN)
    put(dst, dst.storage.data, valid, numerics.down(values, dst.dtype).reshape(len(index), dst.size // dst.shape[0]))


def write_plain(dst: NkiTensor, values: np.ndarray, *, adding: bool = False) -> None:
    storage = dst.storage
    if storage.on_chip or storage.state is None:
        dst.write(values)
        return
    if not adding:
        once(dst, dst._array(storage.state))
    dst.write(values)
    if not values.any():
        dst._array(storage.state)[...] = CLEARED


def together(value: NkiTensor) -> int:
    """Bytes that lie together at the end of a view's pattern; on chip within a partition."""
    count = 1
    first = 1 if value.on_chip or value.rows is not None else 0
    for size, stride in reversed(list(zip(value.shape, value.strides, strict=True))[first:]):
        if size > 1 and stride != count:
            break
        count *= size
    return count * numerics.size(value.dtype)


def moved(dst: NkiTensor, src: NkiTensor, name: str = "dma_copy", *, times: int = 1) -> None:
    """Count a transfer. times: how often so many bytes pass HBM; a transpose is read as wide as its rows arrive."""
    outside = dst if not dst.on_chip else src
    chip = dst if dst.on_chip else src
    size = dst.size * numerics.size(outside.dtype) * times
    found = [together(one) for one in ((dst,) if name == "dma_transpose" else (dst, src)) if one.size > 1]
    rows = chip.shape[0] if chip.on_chip else min(128, max(1, dst.size // max(1, together(dst))))
    machine().issue(name, "dma", rows, dst.free, dst.dtype, size, min(found, default=numerics.size(dst.dtype)))


@instruction
def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: Any = None,
    oob_mode: Any = oob_mode.error,
    dge_mode: Any = dge_mode.unknown,
    engine: Any = engine.unknown,
    name: str | None = None,
) -> None:
    """dst = src, through fp32 when the dtypes differ. Rows picked on either side: a gather or a scatter."""
    side(dst, "dst")
    side(src, "src")
    if dst.size != src.size:
        refuse("dma", f"{list(src.shape)} into {list(dst.shape)}: unequal counts")
    if dge_mode.name == "hwdge" and (dst.dtype != src.dtype or dst.rows or src.rows):
        refuse("dma", "hwdge neither casts nor gathers")
    if dst.rows is not None and src.rows is not None:
        refuse("dma", "rows picked on both sides")
    if priority is not None and machine().core.generation < 4:
        refuse("supported", f"a priority on {machine().core.name}: trn3 and later")
    if src.rows is not None:
        valid = valid_rows(src, oob_mode)
        values = read_rows(src, valid)
        if valid.all():
            write_plain(dst, cast(values, src, dst))
        else:
            partly(dst, valid, cast(values, src, dst))
    elif dst.rows is not None:
        valid = valid_rows(dst, oob_mode)
        values = src.read().reshape(len(valid), src.size // len(valid))[valid]
        write_rows(dst, valid, cast(values, src, dst), adding=False)
    else:
        write_plain(dst, cast(src.read(), src, dst))
    moved(dst, src)


def cast(values: np.ndarray, src: NkiTensor, dst: NkiTensor) -> np.ndarray:
    return values if src.dtype == dst.dtype else numerics.up(values)


def partly(dst: NkiTensor, valid: np.ndarray, values: np.ndarray) -> None:
    """Write the rows that exist; the others of the tile keep what they hold."""
    if len(valid) != dst.shape[0]:
        refuse("dma", f"{len(valid)} picked rows into {list(dst.shape)}: one row per partition")
    machine().used(dst.storage, dst.offset, writes=True)
    array = dst.values()
    array[valid] = numerics.down(values, dst.dtype).reshape(array[valid].shape)
    if dst.storage.state is not None:
        dst._array(dst.storage.state)[valid] = WRITTEN


@instruction
def dma_compute(
    dst: NkiTensor,
    srcs: Any,
    reduce_op: Any,
    scales: Any = None,
    unique_indices: bool = True,
    oob_mode: Any = oob_mode.error,
    name: str | None = None,
) -> None:
    """dst = the sum of srcs, in fp32. With an index: HBM[index] += SBUF, or SBUF += HBM[index]."""
    for what, value in (("dst", dst), *((f"srcs[{i}]", s) for i, s in enumerate(srcs))):
        side(value, what)
        if value.size != dst.size:
            refuse("dma", f"{what} has {value.size} elements, dst {dst.size}")
    if operator(reduce_op, ("binary",)).name != "add" or any(s != 1.0 for s in scales or ()):
        refuse("supported", "only nl.add with scales of 1.0")
    if not 1 <= len(srcs) <= 16:
        refuse("dma", f"{len(srcs)} sources: 1 to 16")
    picked = [s for s in srcs if s.rows is not None]
    if not picked and dst.rows is None:
        if any(v.dynamic for v in (dst, *srcs)):
            refuse("dma", "a run-time address without an index: dma_compute's addresses are static")
        total = sum((numerics.up(s.read()).reshape(-1) for s in srcs[1:]), numerics.up(srcs[0].read()).reshape(-1))
        own = any(s.storage is dst.storage and s.offset == dst.offset for s in srcs)
        write_plain(dst, total, adding=own)
    else:
        if len(srcs) != 2 or len(picked) != 1 or not unique_indices:
            refuse("dma", "with an index: two sources, one of them picked, unique indices")
        other = next(s for s in srcs if s.rows is None)
        if dst.rows is not None:
            if picked[0].storage is not dst.storage or not np.array_equal(picked[0].rows.index, dst.rows.index):
                refuse("dma", "a scatter-add: the picked source is dst itself")
            valid = valid_rows(dst, oob_mode)
            total = numerics.up(read_rows(dst, valid)) + numerics.up(other.read()).reshape(len(valid), -1)[valid]
            write_rows(dst, valid, total, adding=True)
        else:
            if other.storage is not dst.storage or other.offset != dst.offset or dst.buffer != "sbuf":
                refuse("dma", "a gather-add: the other source is dst itself, in SBUF")
            valid = valid_rows(picked[0], oob_mode)
            total = numerics.up(other.read()).reshape(len(valid), -1)[valid]
            partly(dst, valid, total + numerics.up(read_rows(picked[0], valid)))
    other = next((s for s in srcs if s.storage is not dst.storage), srcs[0])
    moved(dst, other, "dma_compute", times=max(1, sum(not s.on_chip for s in (dst, *srcs))))


@instruction
def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: Any = None,
    priority: Any = None,
    dge_mode: Any = dge_mode.unknown,
    oob_mode: Any = oob_mode.error,
    name: str | None = None,
) -> None:
    """dst in SBUF = src with its axes reversed ((3, 1, 2, 0) for four)."""
    side(src, "src")
    side(dst, "dst")
    wanted = AXES.get(src.ndim)
    if wanted is None or (axes is not None and tuple(axes) != wanted):
        refuse("dma", f"axes {axes} of {src.ndim} dimensions: {AXES}")
    if dst.buffer != "sbuf":
        refuse("memory", f"dst is in {dst.buffer}: sbuf")
    if src.dtype != dst.dtype:
        refuse("dtype", f"a transpose of {src.dtype} into {dst.dtype}")
    if dst.shape != tuple(src.shape[a] for a in wanted):
        refuse("shape", f"a transpose of {list(src.shape)} into {list(dst.shape)}")
    if dge_mode.name == "swdge" and src.rows is None:
        refuse("dma", "swdge without an index")
    if dge_mode.name == "hwdge":
        heights, last = (16,) if src.ndim == 2 else (1, 2, 4, 8, 16), src.shape[-1]
        tall = src.shape[0] in heights and (src.ndim == 2 or src.shape[0] * src.shape[-2] % 16 == 0)
        if not tall or last > 128 or numerics.size(src.dtype) != 2:
            refuse("dma", f"hwdge of {src}: 2-byte, {heights} first, the last at most 128")
    if src.rows is not None:
        if numerics.size(src.dtype) != 2 or src.ndim != 2 or src.shape[1] > 128 or src.shape[0] % 16:
            refuse("dma", f"an indexed transpose of {src}: 2-byte, a multiple of 16 rows of at most 128")
        valid = valid_rows(src, oob_mode)
        if not valid.all():
            refuse("supported", "skipped rows in an indexed transpose")
        dst.write(read_rows(src, valid).T)
    else:
        dst.write(src.read().transpose(wanted))
    moved(dst, src, "dma_transpose")
