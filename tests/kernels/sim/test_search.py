"""The eight largest, their places, and what equal values do, as the public stubs describe it."""

from __future__ import annotations

import numpy as np

from trnt.kernels import sim
from trnt.kernels.sim import isa as nisa
from trnt.kernels.sim import language as nl


@sim.jit
def eight(rows):
    """The eight largest, and where."""
    data = nl.load(rows)
    best = nl.ndarray((rows.shape[0], 8), dtype=nl.float32)
    ids = nl.ndarray((rows.shape[0], 8), dtype=nl.uint32)
    nisa.max8(dst=best, src=data)
    nisa.nc_find_index8(dst=ids, data=data, vals=best)
    values = nl.ndarray((rows.shape[0], 8), dtype=nl.float32, buffer=nl.shared_hbm)
    places = nl.ndarray((rows.shape[0], 8), dtype=nl.uint32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=values, src=best)
    nisa.dma_copy(dst=places, src=ids)
    return values, places


@sim.jit
def replaced(rows, vals):
    data, wanted = nl.load(rows), nl.load(vals)
    result = nl.ndarray(rows.shape, dtype=nl.float32)
    ids = nl.ndarray((rows.shape[0], 8), dtype=nl.uint32)
    nisa.nc_match_replace8(dst=result, data=data, vals=wanted, imm=-1.0, dst_idx=ids)
    out = nl.ndarray(rows.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    places = nl.ndarray((rows.shape[0], 8), dtype=nl.uint32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result)
    nisa.dma_copy(dst=places, src=ids)
    return out, places


@sim.jit
def gathered(rows, ids):
    data, index = nl.load(rows), nl.load(ids)
    result = nl.ndarray(ids.shape, dtype=rows.dtype)
    nisa.nc_n_gather(dst=result, data=data, indices=index)
    out = nl.ndarray(ids.shape, dtype=rows.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result)
    return out


def test_the_largest_come_first_and_equal_ones_in_order_of_their_places() -> None:
    row = np.array([[3, 9, 1, 9, 5, 2, 7, 9, 0, 4, 6, 8]], np.float32)
    values, places = eight(row)
    assert values.tolist() == [[9, 9, 9, 8, 7, 6, 5, 4]]
    assert places.tolist() == [[1, 3, 7, 11, 6, 10, 4, 9]]


def test_places_are_a_stable_descending_sort_s() -> None:
    rows = np.random.default_rng(3).integers(0, 20, (128, 64)).astype(np.float32)
    _, places = eight(rows)
    assert np.array_equal(places, np.argsort(-rows, axis=1, kind="stable")[:, :8])


def test_replacing_pairs_equal_values_in_falling_slots() -> None:
    # The example of the public stub of nc_match_replace8.
    data = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    vals = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    out, places = replaced(data, vals)
    assert places.tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]
    assert out.tolist() == [[1, 2, -1, 4, -1, -1, -1, -1, -1, -1, -1]]


def test_what_is_absent_is_all_ones() -> None:
    data = np.arange(8, dtype=np.float32)[None]
    vals = np.array([[7, 100, 100, 100, 100, 100, 100, 0]], np.float32)
    out, places = replaced(data, vals)
    assert places.tolist() == [[7, *[2**32 - 1] * 6, 0]]
    assert out.tolist() == [[-1, 1, 2, 3, 4, 5, 6, -1]]


def test_a_gather_within_each_partition() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(2, 12)
    ids = np.array([[11, 0], [3, 3]], np.uint32)
    assert gathered(rows, ids).tolist() == [[11, 0], [15, 15]]
