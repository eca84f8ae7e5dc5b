"""Dimensions in another order, split, merged, added and removed, against NumPy; the partition stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trnt.kernels import sim
from trnt.kernels.sim import language as nl
from trnt.kernels.sim.run import given

ARRAY = np.arange(4 * 6 * 8, dtype=np.int32).reshape(4, 6, 8)

SHAPES: dict[str, tuple[Any, Any]] = {
    "permute": (lambda t: t.permute((2, 0, 1)), lambda a: a.transpose(2, 0, 1)),
    "reshape": (lambda t: t.reshape((24, 8)), lambda a: a.reshape(24, 8)),
    "reshape with an unknown": (lambda t: t.reshape((2, -1)), lambda a: a.reshape(2, -1)),
    "split": (lambda t: t.reshape_dim(1, (2, -1)), lambda a: a.reshape(4, 2, 3, 8)),
    "split of a slice": (lambda t: t[:, :, 0:4].reshape_dim(2, (2, 2)), lambda a: a[:, :, 0:4].reshape(4, 6, 2, 2)),
    "merge": (lambda t: t.flatten_dims(1, 2), lambda a: a.reshape(4, 48)),
    "broadcast": (lambda t: t[:, 0:1].broadcast(1, 3), lambda a: np.repeat(a[:, 0:1], 3, 1)),
    "expand and squeeze": (lambda t: t.expand_dim(1).squeeze_dim(1), lambda a: a),
    "rearrange": (
        lambda t: t.rearrange(("a", ("h", "w"), "c"), ("w", ("a", "h"), "c"), {"h": 2}),
        lambda a: a.reshape(4, 2, 3, 8).transpose(2, 0, 1, 3).reshape(3, 8, 8),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_shows_what_numpy_shows(name: str) -> None:
    view, expected = SHAPES[name]
    got = view(given(ARRAY))
    assert got.shape == expected(ARRAY).shape
    assert np.array_equal(got.values(), expected(ARRAY))


def test_a_merge_of_what_does_not_lie_together_is_refused() -> None:
    with pytest.raises(sim.Refused, match="do not lie together"):
        given(ARRAY).rearrange(("a", ("h", "w"), "c"), ("h", ("a", "w"), "c"), {"h": 2})
    got = given(ARRAY).rearrange(("a", ("h", "w"), "c"), ("h", "a", "w", "c"), {"h": 2})
    assert np.array_equal(got.values(), ARRAY.reshape(4, 2, 3, 8).transpose(1, 0, 2, 3))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.broadcast(0, 4),
        lambda t: t.reshape_dim(0, (2, 2)),
        lambda t: t.flatten_dims(0, 1),
        lambda t: t.expand_dim(0),
        lambda t: t.reshape((2, 96)),
    ],
)
def test_the_partition_is_never_touched(view: Any) -> None:
    def kernel() -> None:
        view(nl.ndarray((4, 6, 8), dtype=nl.float32))

    with pytest.raises(sim.Refused) as caught:
        sim.simulate(kernel)()
    assert caught.value.rule == "shape"
