"""A stage makes the document boundaries of the microbatch that it gets."""

from __future__ import annotations

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
