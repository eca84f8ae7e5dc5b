"""A model filled from a checkpoint, whole and sharded, holds its values and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.test_converting import convert
from trnt.checkpoint.start import fill
from trnt.errors import TrntError
from trnt.opening import open_checkpoint

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("experts", [0, 6])
def test_state_is_filled_in_place_and_cast(released: Callable[..., Path], experts: int) -> None:
    opened = open_checkpoint(str(released(experts=experts)))
    from trnt.checkpoint import mapping

    state = {name: torch.full(shape, 7.0) for name, shape in mapping.native_shapes(opened.entry).items()}
    half = {name: tensor.bfloat16() for name, tensor in state.items()}
    addresses = {name: tensor.data_ptr() for name, tensor in state.items()}
    fill(state, opened.source, opened.entry)
    fill(half, opened.source, opened.entry)
    assert {name: tensor.data_ptr() for name, tensor in state.items()} == addresses
    for link, (name, _) in mapping.places(opened.entry, "hf", opened.source.tensors).items():
        value = state[link.native] if link.expert is None else state[link.native][link.expert]
        assert torch.equal(value, opened.source.tensor(name))
    assert all(torch.equal(half[name], state[name].bfloat16()) for name in state)


def test_a_tensor_that_receives_nothing_is_named(released: Callable[..., Path]) -> None:
    opened = open_checkpoint(str(released()))
    with pytest.raises(TrntError, match=r"gave nothing to layers\.0\.new"):
        fill({"layers.0.new": torch.ones(1)}, opened.source, opened.entry)


SHARDED = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from trnt import device
device.ensure("cpu")
from trnt.checkpoint import mapping
from trnt.checkpoint.start import fill
from trnt.opening import open_checkpoint
opened = open_checkpoint(sys.argv[1])
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2))
shapes = mapping.native_shapes(opened.entry)
whole = {name: torch.zeros(shape) for name, shape in shapes.items()}
fill(whole, opened.source, opened.entry)
for placements in ([Shard(0), Replicate()], [Shard(0), Shard(0)], [Shard(0), Shard(-1)], [Replicate(), Shard(1)]):
    state = {}
    for name, shape in shapes.items():
        fit = [Shard(p.dim % len(shape)) if isinstance(p, Shard) and -len(shape) <= p.dim < len(shape) else
               Replicate() if isinstance(p, Shard) else p for p in placements]
        state[name] = distribute_tensor(torch.zeros(shape), mesh, fit)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    fill(state, opened.source, opened.entry)
    dcp.load(loaded, checkpoint_id=sys.argv[2])
    for name, tensor in state.items():
        assert torch.equal(tensor.full_tensor(), whole[name]), (name, placements)
        assert torch.equal(loaded[name].full_tensor(), whole[name]), (name, placements)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_every_process_of_a_sharded_model_reads_its_part(released: Callable[..., Path], tmp_path: Path) -> None:
    """Ours from the Hugging Face folder, and torch's own loader from what `trnt convert` makes of it."""
    folder = released(experts=6)  # odd sizes: 3 layers, 6 experts over 4 processes
    convert(folder, tmp_path / "dcp", shard_bytes=200_000)
    (tmp_path / "sharded.py").write_text(SHARDED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = subprocess.run(
        [*command, str(tmp_path / "sharded.py"), str(folder), str(tmp_path / "dcp")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
