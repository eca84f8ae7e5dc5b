"""A collective that is waited for keeps its gradient."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.testing._internal.distributed.fake_pg import FakeStore

from trnt.parallel import waited


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("rows", [1, 4])
def test_the_gradient_of_an_input_that_is_being_gathered(
    rows: int, kept: bool, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the MoE under tensor parallelism: tokens gathered, then experts in a local region. torch's own loses it."""
    monkeypatch.setattr(AsyncCollectiveTensor, "wait", waited.wait)
    if kept:
        waited.keep_history()
    region = local_map(
        lambda x: 3 * x,
        out_placements=[Partial()],
        in_placements=([Replicate()],),
        in_grad_placements=([Partial()],),
        device_mesh=mesh,
    )
    x = distribute_tensor(torch.ones(rows, 8, 4), mesh, [Shard(1)]).requires_grad_()
    out = region(x.redistribute(mesh, [Replicate()], async_op=True))
    assert out.requires_grad == (kept or rows > 1)  # with more rows the gather is copied, which waits
    if out.requires_grad:
        out.sum().backward()
        assert x.grad is not None
        assert x.grad.to_local().shape == (rows, 4, 4)


def test_without_a_gradient_it_is_torchs_own(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncCollectiveTensor, "wait", waited.waited)
    x = AsyncCollectiveTensor(torch.ones(3))
    assert type(x.wait()) is torch.Tensor
    assert not x.wait().requires_grad
