"""What processes send each other is counted, by torch's fake processes: no data moves, every call is made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from trnt.kernels.loss import ChunkedLoss
from trnt.parallel.traffic import OPERATORS, SENT, SILENT, Counting

PROCESSES = 4


@pytest.fixture
def group() -> Iterator[str]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=PROCESSES)
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


def test_each_kind_sends_what_its_best_algorithm_does(group: str) -> None:
    x = torch.zeros(8)  # 32 bytes
    with Counting({group: "all"}) as counting:
        dist.all_reduce(x)
        dist.all_gather_into_tensor(torch.zeros(32), x)
        dist.reduce_scatter_tensor(torch.zeros(2), x)
        dist.all_to_all_single(torch.zeros(8), x)
        dist.send(x, 1)
        dist.recv(x, 1)
        dist.barrier()
        functional.all_reduce(x, "sum", dist.group.WORLD).sum()
    found = {key: (count.calls, count.sent_bytes) for key, count in counting.found.items()}
    assert found == {
        ("all", "all-reduce"): (2, 2 * 48),
        ("all", "all-gather"): (1, 96),
        ("all", "reduce-scatter"): (1, 24),
        ("all", "all-to-all"): (1, 24),
        ("all", "send"): (1, 32),
        ("all", "receive"): (1, 0),
    }


def test_every_collective_of_torch_is_in_a_table(group: str) -> None:
    assert {kind for kind, _ in OPERATORS.values()} == set(SENT)
    for name in (*OPERATORS, *SILENT):
        space, _, op = name.partition("::")
        packet = getattr(getattr(torch.ops, space), op)
        if name in OPERATORS:
            assert OPERATORS[name][1] in {argument.name for argument in packet.default._schema.arguments}
    with Counting(), pytest.raises(KeyError, match="gather_"):
        dist.gather(torch.zeros(2), [torch.zeros(2) for _ in range(PROCESSES)])


def test_a_dtensor_is_counted_as_what_it_is_made_of(group: str) -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    x = distribute_tensor(torch.zeros(8, 3), mesh, [Shard(0)])
    with Counting() as counting:
        x.redistribute(mesh, [Replicate()]).to_local().sum()
    ((_, kind), count), *rest = counting.found.items()
    assert (kind, count.calls, count.sent_bytes, rest) == ("all-gather", 1, 2 * 3 * 4 * (PROCESSES - 1), [])


class Ends(torch.nn.Module):
    """The end of a model, whose loss has the head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lm_head = torch.nn.RMSNorm(16), torch.nn.Linear(16, 32, bias=False)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.norm(h)


@pytest.mark.parametrize(("keep", "gathers"), [(True, 1), (False, 3)])
def test_a_head_is_gathered_once_a_pass(keep: bool, gathers: int, group: str) -> None:
    """torchtitan's loss gives it back before the backward of the norm, whose unit it is in, and the next forward."""
    model = Ends()
    mesh = init_device_mesh("cpu", (PROCESSES,))
    fully_shard([model.norm, model.lm_head], mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    loss = ChunkedLoss.Config(keep_head=keep, max_logits_bytes=2 * 4 * 32 * 4).build()
    loss.set_lm_head(model.lm_head)
    for _ in range(2):  # torchtitan's changes what comes after the first
        with Counting() as counting:
            hidden = model(torch.zeros(2, 8, 16, requires_grad=True))
            loss(hidden, torch.zeros(2, 8, dtype=torch.int64), torch.tensor(16))[0].backward()
    calls = {kind: count.calls for (_, kind), count in counting.found.items()}
    assert calls["all-gather"] == gathers
