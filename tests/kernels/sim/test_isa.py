"""Names and argument order are the public stubs' (aws-neuron-sdk, 2026-08-21): a change there is seen here."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from trnt.kernels import sim
from trnt.kernels.sim import isa

STUBS = json.loads((Path(__file__).parent / "signatures.json").read_text())
OURS = [name for name in isa.__all__ if name in STUBS]


@pytest.mark.parametrize("name", [n for n in OURS if n not in ("core_barrier", "sendrecv")])
def test_the_arguments_are_the_stub_s(name: str) -> None:
    assert list(inspect.signature(getattr(isa, name)).parameters) == STUBS[name]


@pytest.mark.parametrize("name", sorted(set(STUBS) - set(OURS) - {"get_nc_sub_version"}))
def test_what_is_not_interpreted_says_so(name: str) -> None:
    with pytest.raises(sim.Refused, match=f"nisa.{name} is not interpreted"):
        getattr(isa, name)


def test_the_instructions_that_mixture_of_experts_needs_are_there() -> None:
    needed = """nc_matmul nc_transpose dma_copy dma_compute dma_transpose tensor_copy tensor_tensor tensor_scalar
    scalar_tensor_tensor tensor_reduce tensor_scalar_reduce activation activation_reduce reciprocal iota memset max8
    nc_find_index8 nc_match_replace8 select_reduce tensor_copy_predicated affine_select nc_stream_shuffle
    register_alloc register_move register_load register_store"""
    assert set(needed.split()) <= set(OURS)
