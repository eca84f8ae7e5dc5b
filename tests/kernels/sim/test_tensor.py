"""Views against NumPy: the same elements, nothing copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trnt.kernels import sim
from trnt.kernels.sim import language as nl
from trnt.kernels.sim.run import given

ARRAY = np.arange(4 * 6 * 8, dtype=np.int32).reshape(4, 6, 8)

VIEWS: dict[str, tuple[Any, Any]] = {
    "slices": (lambda t: t[1:3, 2:6:2, :], lambda a: a[1:3, 2:6:2, :]),
    "an index drops the dimension in HBM": (lambda t: t[2], lambda a: a[2]),
    "a negative index": (lambda t: t[..., -1], lambda a: a[..., -1]),
    "ds": (lambda t: t[:, nl.ds(2, 3)], lambda a: a[:, 2:5]),
    "an access pattern": (lambda t: t.ap([[48, 2], [8, 3]], offset=5), lambda a: a[:2, :3, 5]),
    "a stride of 0": (lambda t: t.ap([[0, 3], [1, 4]]), lambda a: np.tile(a[0, 0, :4], (3, 1))),
    "the same bits": (lambda t: t.view("float32").view("int32"), lambda a: a),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shows_what_numpy_shows(name: str) -> None:
    view, expected = VIEWS[name]
    got = view(given(ARRAY))
    assert got.shape == expected(ARRAY).shape
    assert np.array_equal(got.values(), expected(ARRAY))


@sim.jit
def on_chip():
    tile = nl.ndarray((4, 6, 8), dtype=nl.float32)
    assert tile[1].shape == (1, 6, 8)
    assert tile[:, 2].shape == (4, 8)
    assert tile.get_pattern() == [[48, 4], [8, 6], [1, 8]]
    assert tile[:, 0:3].is_contiguous()
    assert not tile[:, :, 0:3].is_contiguous()


def test_an_index_keeps_the_partition_on_chip() -> None:
    on_chip()
