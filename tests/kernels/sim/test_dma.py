"""Transfers: casts, gathers, scatters, additions and transposes against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from trnt.kernels import sim
from trnt.kernels.sim import isa as nisa
from trnt.kernels.sim import language as nl

ROWS = np.random.default_rng(4).standard_normal((10, 6)).astype(np.float32)
IDS = np.array([[7], [0], [7], [9]], np.int32)


@sim.jit
def gather(rows, ids, first, width, skip):
    index = nl.load(ids)
    tile = nl.ndarray((ids.shape[0], width), dtype=nl.float32)
    nisa.memset(dst=tile, value=0.0)
    picked = rows.ap([[rows.shape[1], ids.shape[0]], [1, width]], offset=first, vector_offset=index)
    nisa.dma_copy(dst=tile, src=picked, oob_mode=nisa.oob_mode.skip if skip else nisa.oob_mode.error)
    out = nl.ndarray((ids.shape[0], width), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize(("first", "width"), [(0, 6), (2, 3)])
def test_a_gather_takes_rows(first: int, width: int) -> None:
    got = gather(ROWS, IDS, first, width, False)
    assert np.array_equal(got, ROWS[IDS[:, 0], first : first + width])


def test_skipped_rows_keep_what_the_tile_held() -> None:
    got = gather(ROWS, np.array([[3], [10], [-1]], np.int32), 0, 6, True)
    assert np.array_equal(got, np.stack([ROWS[3], np.zeros(6), np.zeros(6)]).astype(np.float32))


@sim.jit
def gather_columns(rows, ids):
    """Every second element of the picked rows: a row that does not lie together."""
    index = nl.load(ids)
    tile = nl.ndarray((ids.shape[0], 3), dtype=nl.float32)
    nisa.dma_copy(dst=tile, src=rows.ap([[6, ids.shape[0]], [2, 3]], vector_offset=index))
    out = nl.ndarray((ids.shape[0], 3), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_a_gather_with_a_stride() -> None:
    assert np.array_equal(gather_columns(ROWS, IDS), ROWS[IDS[:, 0], ::2])


@sim.jit
def scatter(rows, ids, adding):
    index, data = nl.load(ids), nl.load(rows[0 : ids.shape[0], :])
    out = nl.ndarray((10, 6), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=nl.zeros((10, 6), nl.float32))
    picked = out.ap([[6, ids.shape[0]], [1, 6]], vector_offset=index)
    if adding:
        for _ in range(2):
            nisa.dma_compute(dst=picked, srcs=[picked, data], reduce_op=nl.add)
    else:
        nisa.dma_copy(dst=picked, src=data, oob_mode=nisa.oob_mode.skip)
    return out


@pytest.mark.parametrize("adding", [False, True])
def test_a_scatter_puts_rows_or_adds_to_them(adding: bool) -> None:
    ids = np.array([[4], [1], [8]], np.int32)
    expected = np.zeros((10, 6), np.float32)
    expected[ids[:, 0]] = ROWS[:3] * (2 if adding else 1)
    assert np.array_equal(scatter(ROWS, ids, adding), expected)


@pytest.mark.parametrize("ids", [[10, 1, -1], [10, 11, 12]])
def test_a_scatter_leaves_out_rows_that_are_not_there(ids: list[int]) -> None:
    expected = np.zeros((10, 6), np.float32)
    for row, index in enumerate(ids):
        if 0 <= index < 10:
            expected[index] = ROWS[row]
    assert np.array_equal(scatter(ROWS, np.array(ids, np.int32)[:, None], False), expected)


@sim.jit
def gather_add(rows, first, second):
    total = nl.ndarray((4, 6), dtype=nl.float32)
    nisa.dma_copy(dst=total, src=rows.ap([[6, 4], [1, 6]], vector_offset=nl.load(first)))
    more = rows.ap([[6, 4], [1, 6]], vector_offset=nl.load(second))
    nisa.dma_compute(dst=total, srcs=[total, more], reduce_op=nl.add)
    out = nl.ndarray((4, 6), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=total)
    return out


def test_a_gather_that_adds() -> None:
    second = np.array([[1], [1], [2], [3]], np.int32)
    assert np.array_equal(gather_add(ROWS, IDS, second), ROWS[IDS[:, 0]] + ROWS[second[:, 0]])


@sim.jit
def cast(rows):
    out = nl.ndarray(rows.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=nl.load(rows))
    return out


def test_a_transfer_casts() -> None:
    assert np.array_equal(cast(ROWS), ROWS.astype(ml_dtypes.bfloat16))


@sim.jit
def transposed(rows, shape):
    tile = nl.ndarray(shape, dtype=rows.dtype)
    nisa.dma_transpose(dst=tile, src=rows)
    out = nl.ndarray(shape, dtype=rows.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_transposes_of_two_to_four_dimensions() -> None:
    cube = np.arange(2 * 3 * 4 * 5, dtype=np.float32)
    for shape, axes in (((24, 5), (1, 0)), ((6, 4, 5), (2, 1, 0)), ((2, 3, 4, 5), (3, 1, 2, 0))):
        array = cube.reshape(shape)
        expected = array.transpose(axes)
        assert np.array_equal(transposed(array, expected.shape), expected)


@sim.jit
def blocks_of_a_loop(rows, count):
    """Row i of a run-time loop, by a register."""
    out = nl.ndarray((10, 6), dtype=nl.float32, buffer=nl.shared_hbm)
    trips = nisa.register_alloc()
    nisa.register_load(trips, count)

    def body(i):
        tile = nl.ndarray((1, 6), dtype=nl.float32)
        nisa.dma_copy(dst=tile, src=rows.ap([[6, 1], [1, 6]], scalar_offset=i, indirect_dim=0))
        nisa.dma_copy(dst=out.ap([[6, 1], [1, 6]], scalar_offset=i, indirect_dim=0), src=tile)

    nl.fori_loop(0, trips, body)
    return out


def test_a_register_addresses_a_row() -> None:
    got = blocks_of_a_loop(ROWS, np.array([7], np.int32))
    assert np.array_equal(got[:7], ROWS[:7])
    assert np.isnan(got[7:]).all()  # poison: never written
