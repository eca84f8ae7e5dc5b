"""A stage makes the document boundaries of the microbatch that it gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from trnt.parallel import pipeline


class Stage(torch.nn.Module):
    def get_attention_masks(self, positions: torch.Tensor) -> list[int]:
        return (positions.flatten() == 0).nonzero().flatten().tolist()

    def forward(self, x: torch.Tensor, **options: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        return x, options


def test_boundaries_are_those_of_the_microbatch() -> None:
    stage = Stage()
    pipeline.make_masks(stage)
    positions = torch.tensor([[0, 1, 0, 1], [0, 1, 2, 3]])
    x, options = stage(torch.ones(2), positions=positions)
    assert options["attention_masks"] == [0, 2, 4]
    assert torch.equal(options["positions"], positions)
    assert torch.equal(x, torch.ones(2))
    _, options = stage(torch.ones(1), positions=positions[1:])
    assert options["attention_masks"] == [0]


def test_the_search_for_shapes_leaves_nothing() -> None:
    layer = torch.nn.BatchNorm1d(2)
    (layer.weight.sum() * 2).backward()  # as by an earlier pass of the same step

    loss, pipelined = SimpleNamespace(pipelined=True), []

    class Schedule:
        calls = 0

        def _initialize_pp_stages(self, stages: Any, *args: Any, **options: Any) -> tuple[Any, ...]:
            self.calls += 1
            pipelined.append(loss.pipelined)
            layer(torch.full((3, 2), torch.nan)).sum().backward()
            return stages, args, options

    schedule: Any = Schedule()
    pipeline.leave_no_trace(schedule, [layer], loss)
    assert schedule._initialize_pp_stages([1], 2, target=3) == ([1], (2,), {"target": 3})
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [2, 2]
    assert layer.bias.grad is None
    assert layer.running_mean is not None
    assert layer.running_mean.tolist() == [0, 0]
    assert layer.num_batches_tracked == 0
    schedule._initialize_pp_stages([1])
    assert schedule.calls == 2
    assert pipelined == [False, True]
    assert layer.num_batches_tracked == 1  # only the first time: later ones find it done
