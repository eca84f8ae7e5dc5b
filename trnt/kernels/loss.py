"""The language-model loss in chunks of tokens, so that the logits of a whole batch never exist at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from trnt import device

device.ensure()

from torchtitan.components.loss import IGNORE_INDEX, ChunkedLossWrapper


class ChunkedLoss(ChunkedLossWrapper):
    """torchtitan's chunked loss for rows of any length, its chunks as few as the limit allows.

    torchtitan's takes a fixed number of chunks that must divide the row; here the number follows from the batch, and
    the row is padded with ignored targets.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(ChunkedLossWrapper.Config):
        max_logits_bytes: int = 128 << 20
        """Bytes of one chunk's fp32 logits (batch x tokens x vocabulary x 4); at least one token a row is taken."""

    def __init__(self, config: Config, **options: Any) -> None:
        super().__init__(config, **options)
        self.max_logits_bytes = config.max_logits_bytes

    def __call__(
        self,
        pred: torch.Tensor,
        labels: torch.Tensor,
        global_valid_tokens: torch.Tensor | None = None,
        **loss_inputs: Any,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Sum of the cross entropies divided by `global_valid_tokens`, from hidden states (B, L, D)."""
        loss_inputs.pop("positions", None)
        assert self.lm_head is not None
        batch, length = labels.shape
        per_token = batch * self.lm_head.weight.shape[0] * 4
        chunk = max(1, min(length, self.max_logits_bytes // per_token))
        self.num_chunks = -(-length // chunk)
        chunk = -(-length // self.num_chunks)
        padding = chunk * self.num_chunks - length
        if padding:
            pred = F.pad(pred, (0, 0, 0, padding))
            labels = F.pad(labels, (0, padding), value=IGNORE_INDEX)
        return super().__call__(pred, labels, global_valid_tokens, **loss_inputs)
