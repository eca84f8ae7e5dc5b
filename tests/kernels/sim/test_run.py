"""Kernels in and out: NumPy, torch, grids, and `import nki` for kernels written by others."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from trnt.kernels import sim
from trnt.kernels.sim import isa as nisa
from trnt.kernels.sim import language as nl


@sim.jit
def doubled(rows, factor=2.0):
    """Twice the rows."""
    tile = nl.load(rows)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
    out = nl.ndarray(rows.shape, dtype=rows.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32])
def test_torch_in_torch_out(dtype: torch.dtype) -> None:
    rows = torch.arange(12).reshape(3, 4).to(dtype)
    got = doubled(rows)
    assert got.dtype == dtype
    assert torch.equal(got, rows * 2)


def test_numpy_in_numpy_out_and_views_are_copied() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    assert np.array_equal(doubled[1](rows, factor=3.0), rows * 3)
    assert doubled.__doc__ == "Twice the rows."


def test_a_dtype_without_a_place_on_the_device_is_refused() -> None:
    with pytest.raises(sim.Refused, match="float64"):
        doubled(np.zeros((2, 2)))


def test_a_grid_of_two_is_refused_and_jit_takes_no_options() -> None:
    with pytest.raises(sim.Refused, match="a launch on 2 cores"):
        doubled[2]
    with pytest.raises(sim.Refused, match="takes no arguments"):
        sim.jit(platform_target="trn2")


def test_order_independent_gives_the_result() -> None:
    @sim.jit
    def sums(rows):
        out = nl.ndarray(rows.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        for i in nl.affine_range(rows.shape[0]):
            tile = nl.load(rows[i : i + 1, :])
            nisa.dma_copy(dst=out[i : i + 1, :], src=tile)
        return out

    rows = np.random.default_rng(6).standard_normal((5, 3)).astype(np.float32)
    assert np.array_equal(sim.order_independent(sums, rows), rows)


def test_import_nki_finds_the_interpreter_inside_only(tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    path.write_text(
        "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n@nki.jit\ndef copy(a):\n"
        "    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)\n"
        "    nisa.dma_copy(dst=out, src=nl.load(a))\n    return out\n"
    )
    spec = importlib.util.spec_from_file_location("other", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with sim.stand_in():
        spec.loader.exec_module(module)
    assert importlib.util.find_spec("nki") is None
    rows = np.ones((2, 3), np.float32)
    assert np.array_equal(module.copy(rows), rows)
