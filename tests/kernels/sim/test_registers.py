"""A register may be held, and read by instructions only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trnt.kernels import sim
from trnt.kernels.sim import isa as nisa
from trnt.kernels.sim import language as nl
from trnt.kernels.sim.registers import VirtualRegister, number

LOOKS: dict[str, Any] = {
    "int": int,
    "index": lambda r: [0, 1][r],
    "float": float,
    "text": str,
    "truth": bool,
    "sum": lambda r: r + 1,
    "sum from the right": lambda r: 1 + r,
    "product": lambda r: r * 2,
    "order": lambda r: r < 3,
    "equality": lambda r: r == 1,
    "range": range,
}


@pytest.mark.parametrize("what", LOOKS)
def test_python_may_not_look_into_it(what: str) -> None:
    with pytest.raises(sim.Refused) as caught:
        LOOKS[what](VirtualRegister(1))
    assert caught.value.rule == "dynamic"


def test_an_empty_register_is_not_read() -> None:
    with pytest.raises(sim.Refused) as caught:
        number(VirtualRegister())
    assert caught.value.rule == "unwritten"


@sim.jit
def carries(counts):
    first, second = nisa.register_alloc(), nisa.register_alloc(7)
    nisa.register_load(first, counts[1:2])
    nisa.register_move(second, first)
    out = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.shared_hbm)
    nisa.register_store(out, second)
    return out


def test_registers_carry_numbers() -> None:
    assert carries(np.array([4, 9], np.int32)).tolist() == [[9]]


@sim.jit
def writes_its_index():
    def body(i):
        nisa.register_move(i, 3)

    nl.fori_loop(0, 2, body)


def test_the_index_of_a_loop_is_frozen() -> None:
    with pytest.raises(sim.Refused, match="frozen"):
        writes_its_index()
