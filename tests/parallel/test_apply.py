"""One process in one dtype needs no FSDP; with mixed precision FSDP does the casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from trnt import launch


@pytest.mark.parametrize(("precision", "sharded"), [("fp32", False), ("mixed", True), ("bf16", False)])
def test_fsdp_is_there_only_where_it_casts(
    settings: Callable[..., Any],
    config_of: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    sharded: bool,
) -> None:
    from trnt.trainer import Trainer

    seen: dict[str, Any] = {}

    def look(self: Trainer) -> None:
        model = self.model_parts[0]
        seen["sharded"] = any(isinstance(m, FSDPModule) for m in model.modules())
        seen["dtype"] = next(model.parameters()).dtype
        inputs, labels = next(iter(self.dataloader))
        self.train_step(iter([(inputs, labels)]))
        seen["loss"] = self.metrics_processor.rows[-1]["loss"]

    monkeypatch.setattr(Trainer, "train", look)
    chosen = settings(precision=precision, seq_len=4, batch_size=1)
    launch.run(config_of(chosen))
    assert seen["sharded"] == sharded
    assert seen["dtype"] == (torch.bfloat16 if precision == "bf16" else torch.float32)
    assert 7 < seen["loss"] < 10
