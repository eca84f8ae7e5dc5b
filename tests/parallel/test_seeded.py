"""The same weights in every layout: what process 0 draws is what one process draws; layouts see test_layouts.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trnt.kernels.swap import swap
from trnt.models import registry
from trnt.parallel.seeded import drawn


def test_one_process_and_the_first_of_many_draw_the_same(tiny_model: Callable[..., Any]) -> None:
    entry = registry.get("qwen3-tiny-moe")
    config = entry.family.titan_spec(entry.name, entry.size).model
    swap(config)
    expected = dict(tiny_model("qwen3-tiny-moe").named_parameters())  # seed 0
    found = dict(drawn(config, 0, "float32").named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    other = dict(drawn(config, 1, "float32").named_parameters())
    assert not torch.equal(other["layers.0.attention.wo.weight"], expected["layers.0.attention.wo.weight"])
    half = next(drawn(config, 0, "bfloat16").parameters())
    assert half.dtype == torch.bfloat16
