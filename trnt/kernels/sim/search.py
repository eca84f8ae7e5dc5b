"""Instructions that look for values in each row: the eight largest, where they are, and gathers by their places."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnt.kernels.sim import numerics
from trnt.kernels.sim.operands import count, flat, instruction, same, tile
from trnt.kernels.sim.refusal import refuse
from trnt.kernels.sim.tensor import NkiTensor

LEAST, MOST = 8, 16_384


def searchable(data: NkiTensor, *eights: NkiTensor) -> None:
    tile(data, "data")
    if not LEAST <= data.free <= MOST:
        refuse("shape", f"{data.free} elements per partition: {LEAST} to {MOST:,}")
    for value in eights:
        tile(value, "a tile of eight")
        if value.shape[0] != data.shape[0] or value.free != 8:
            refuse("shape", f"{list(value.shape)}: ({data.shape[0]}, 8)")


@instruction
def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> None:
    """dst (P, 8) = the eight largest of each row, largest first."""
    searchable(src, dst)
    dst.write(-np.sort(-flat(src), axis=1, kind="stable")[:, :8])
    count("max8", "vector", src)


def places(data: np.ndarray, vals: np.ndarray) -> np.ndarray:
    """(P, 8): where each value stands; equal values take successive places, absent ones -1."""
    found = np.full(vals.shape, -1, np.int64)
    taken = np.zeros(data.shape, bool)
    rows = np.arange(len(data))
    for slot in range(vals.shape[1]):
        hit = (data == vals[:, slot : slot + 1]) & ~taken
        first = hit.argmax(1)
        there = hit[rows, first]
        found[there, slot] = first[there]
        taken[rows[there], first[there]] = True
    return found


@instruction
def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> None:
    """dst (P, 8) = the first place of each of eight values in its row; all ones where there is none."""
    searchable(data, dst, vals)
    if dst.dtype not in ("uint16", "uint32"):
        refuse("dtype", f"dst is {dst.dtype}: uint16 or uint32")
    found = places(flat(data), flat(vals))
    absent = np.iinfo(numerics.DTYPES[dst.dtype]).max
    dst.write(np.where(found < 0, absent, found))
    count("nc_find_index8", "vector", data)


@instruction
def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: float,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> None:
    """dst = data with the first place of each of eight values set to imm; places of equal values in falling slots."""
    searchable(data, vals, *(() if dst_idx is None else (dst_idx,)))
    tile(dst, "dst")
    same(dst, data, "dst and data")
    values, eight = flat(data).copy(), flat(vals)
    found = places(values, eight[:, ::-1])[:, ::-1]
    rows, slots = np.nonzero(found >= 0)
    values[rows, found[rows, slots]] = imm
    dst.write(values)
    if dst_idx is not None:
        absent = np.iinfo(numerics.DTYPES[dst_idx.dtype]).max
        dst_idx.write(np.where(found < 0, absent, found))
    count("nc_match_replace8", "vector", data)


@instruction
def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> None:
    """dst[p, i] = data[p, indices[p, i]]."""
    for what, value in (("dst", dst), ("data", data), ("indices", indices)):
        tile(value, what, ("sbuf",))
    same(dst, indices, "dst and indices")
    if indices.dtype != "uint32":
        refuse("dtype", f"indices are {indices.dtype}: uint32")
    if data.shape[0] != dst.shape[0]:
        refuse("shape", f"data of {data.shape[0]} partitions, dst of {dst.shape[0]}")
    picked = indices.read().reshape(dst.shape[0], -1).astype(np.int64)
    if picked.max() >= data.free:
        refuse("outside", f"index {picked.max()} of {data.free} elements")
    dst.write(np.take_along_axis(data.read().reshape(data.shape[0], -1), picked, axis=1))
    count("nc_n_gather", "gpsimd", dst)


UNSUPPORTED: dict[str, str] = {
    "topk": "max8 and nc_find_index8",
    "local_gather": "nc_n_gather",
    "nonzero_with_count": "iota and tensor_scalar",
    "bn_stats": "tensor_reduce",
    "bn_aggr": "tensor_reduce",
    "tensor_partition_reduce": "nc_matmul with ones",
    "tensor_scalar_cumulative": "tensor_tensor_scan",
    "range_select": "select_reduce",
    "activate2": "activation",
    "exponential": "activation",
    "nc_matmul_mx": "nc_matmul",
    "quantize_mx": "tensor_copy",
    "sequence_bounds": "tensor_tensor_scan",
}


def nearest(name: str) -> Any:
    """Refuse an instruction that exists but is not interpreted, naming the closest one that is."""
    refuse("supported", f"nisa.{name} is not interpreted; the closest: {UNSUPPORTED.get(name, 'none')}")
