"""Which free dimensions an access pattern really has."""

from __future__ import annotations

from trnt.kernels import sim
from trnt.kernels.sim import language as nl
from trnt.kernels.sim.operands import NkiInstruction, free_dims


@sim.jit
def patterns():
    tile = nl.ndarray((4, 2, 3, 5, 7), dtype=nl.float32)
    assert free_dims(tile) == 1
    assert free_dims(tile[:, :, :, 0:4]) == 2
    assert free_dims(tile[:, :, 0:2, 0:4, 0:6]) == 4
    assert free_dims(tile[:, 0:1, 0:1, 0:1, 0:1]) == 1
    assert free_dims(tile.permute((0, 2, 1, 3, 4))) == 3


def test_dimensions_that_lie_together_are_one() -> None:
    patterns()


def test_an_instruction_can_be_ordered_after_another() -> None:
    NkiInstruction().depends_on(NkiInstruction())
