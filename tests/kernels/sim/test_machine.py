"""What is alive when: the peak of the state buffer and of PSUM's banks, counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trnt.kernels import hardware, sim
from trnt.kernels.sim import isa as nisa
from trnt.kernels.sim import language as nl
from trnt.kernels.sim import machine, subset


@sim.jit
def one_after_another(rows):
    """Three tiles of 400 bytes per partition; at most two are alive at one time."""
    out = nl.ndarray((128, 100), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 100), dtype=nl.float32)
    nisa.dma_copy(dst=a, src=rows)
    b = nl.ndarray((128, 100), dtype=nl.float32)
    nisa.tensor_copy(dst=b, src=a)
    c = nl.ndarray((128, 100), dtype=nl.float32)
    nisa.tensor_copy(dst=c, src=b)
    nisa.dma_copy(dst=out, src=c)
    return out


@sim.jit
def kept_over_a_loop(rows, trips):
    """`kept` is used in the loop, so it lives to the loop's end beside each trip's tile; tiles of trips share."""
    kept = nl.ndarray((128, 100), dtype=nl.float32)
    nisa.dma_copy(dst=kept, src=rows)

    def body(i):
        first = nl.ndarray((128, 100), dtype=nl.float32)
        nisa.tensor_copy(dst=first, src=kept)
        second = nl.ndarray((128, 50), dtype=nl.float32)
        nisa.memset(dst=second, value=0.0)
        third = nl.ndarray((128, 50), dtype=nl.float32)
        nisa.tensor_copy(dst=third, src=second)

    nl.fori_loop(0, trips, body)


@sim.jit
def banks():
    """A bank and a bit is two banks; the second tensor makes it three."""
    a = nl.ndarray((128, 513), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    b = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=b, value=0.0)
    nisa.tensor_copy(dst=b, src=a[:, 0:8])


ROWS = np.ones((128, 100), np.float32)


def test_the_peak_is_what_is_alive_at_one_time() -> None:
    one_after_another(ROWS)
    assert one_after_another.report.peak.sbuf == 800
    assert one_after_another.report.peak.psum_banks == 0


@pytest.mark.parametrize("trips", [1, 2, 5])
def test_a_loop_costs_one_trip(trips: int) -> None:
    kept_over_a_loop(ROWS, trips)
    assert kept_over_a_loop.report.peak.sbuf == 800


def test_what_the_kernel_lets_go_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when it lived is kept: a kernel of many tiles needs no more memory than those it holds."""
    import gc
    import weakref

    kept: list[weakref.ref[machine.Storage]] = []
    original = machine.Machine.allocate

    def allocate(*args: Any) -> machine.Storage:
        made = original(*args)
        kept.append(weakref.ref(made))
        return made

    @sim.jit
    def many():
        for i in range(20):
            tile = nl.ndarray((128, 100), dtype=nl.float32)
            nisa.memset(dst=tile, value=float(i))
        gc.collect()
        assert sum(ref() is not None for ref in kept) == 1

    monkeypatch.setattr(machine.Machine, "allocate", allocate)
    monkeypatch.setattr(subset, "check", lambda function: None)
    many()
    assert len(kept) == 20


def test_banks_are_whole() -> None:
    banks()
    assert banks.report.peak.psum_banks == 3


def test_each_core_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    @sim.jit
    def large():
        nl.ndarray((128, 50_000), dtype=nl.float32)

    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    large()
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "gen2")
    limit = f"{hardware.core('trn1').sbuf_usable:,}"
    with pytest.raises(sim.Refused, match=f"trn1 has {limit}"):
        large()


def test_instructions_are_counted_with_their_engine_and_bytes() -> None:
    one_after_another(ROWS)
    issued = one_after_another.report.issued
    assert [(i.name, i.engine, i.rows, i.columns, i.moved) for i in issued] == [
        ("dma_copy", "dma", 128, 100, 51_200),
        ("tensor_copy", "vector", 128, 100, 0),
        ("tensor_copy", "vector", 128, 100, 0),
        ("dma_copy", "dma", 128, 100, 51_200),
    ]
