"""Tokens for heads and back, in real processes; whole trainings are compared in test_layouts.py."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from trnt.models import registry
from trnt.parallel import context

EXCHANGE = """
import os
from trnt import device
device.ensure("cpu")
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from trnt.parallel import context

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(3, 8, 4, 5)
mine = x[:, rank * 4 : rank * 4 + 4].clone().requires_grad_()
heads = context.to_heads(mine, mesh)
assert torch.equal(heads, x[:, :, rank * 2 : rank * 2 + 2]), "whole rows of my heads"
back = context.to_tokens(heads, mesh)
assert torch.equal(back, mine)
weight = torch.randn(3, 8, 2, 5)
(heads * weight).sum().backward()
both = [torch.empty_like(weight) for _ in range(2)]
dist.all_gather(both, weight)
assert torch.equal(mine.grad, torch.cat(both, 2)[:, rank * 4 : rank * 4 + 4])

one = x[:, :, :1].clone().requires_grad_()  # a single head: both processes get it
part = one[:, rank * 4 : rank * 4 + 4]
heads = context.to_heads(part, mesh)
assert torch.equal(heads, x[:, :, :1])
heads.sum().backward()
assert torch.equal(one.grad[:, rank * 4 : rank * 4 + 4], torch.full_like(part, 2.0))

ids = torch.arange(24).view(3, 8)
assert torch.equal(context.whole(context.part(ids, mesh), mesh), ids)
dist.destroy_process_group()
"""


def test_tokens_are_exchanged_for_heads(tmp_path: Path) -> None:
    (tmp_path / "exchange.py").write_text(EXCHANGE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, str(tmp_path / "exchange.py")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("model", ["qwen3-tiny", "llama3-tiny"])
def test_the_model_does_not_see_the_degree_and_is_the_same(model: str) -> None:
    from trnt.trainer import Trainer

    entry = registry.get(model)
    spec = entry.family.titan_spec(entry.name, entry.size)
    seen = context.unseen(spec.model)
    config = Trainer.Config(model_spec=spec)
    config.parallelism.context_parallel_degree = 2
    with pytest.raises(NotImplementedError):
        spec.model.update_from_config(config=config)
    seen.update_from_config(config=config)
    assert config.parallelism.context_parallel_degree == 2
    assert type(seen.build()) is type(spec.model.build())
    assert {f.name for f in dataclasses.fields(seen)} == {f.name for f in dataclasses.fields(spec.model)}
