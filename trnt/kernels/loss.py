"""The language-model loss in chunks of tokens, so that the logits of a whole batch never exist at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from trnt import device

device.ensure()

from torch.distributed.fsdp import FSDPModule
from torchtitan.components.loss import IGNORE_INDEX, ChunkedLossWrapper, CrossEntropyLoss

from trnt.kernels import grads, matmul

BLOCK = 2048  # rows of the head at once: with all of them the matmul library is up to twice as slow


@torch.no_grad()
def head_and_loss(
    h_TD: torch.Tensor, labels_T: torch.Tensor, weight_VD: torch.Tensor, targets: torch.Tensor, max_bytes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy of h W^T, summed and divided by `targets`: (loss (), its gradient at h (T, D)).

    The weight must be owned: its gradient is written in place. One buffer of at most `max_bytes` holds in turn a
    chunk's logits, log-probabilities and their gradient. Everything is in the dtype of h.
    """
    tokens, vocab = len(h_TD), len(weight_VD)
    most = max(1, max_bytes // (vocab * h_TD.element_size()))
    chunk = -(-tokens // -(-tokens // most))
    buffer_TV = h_TD.new_empty(min(chunk, tokens), vocab)
    dh_TD = torch.empty_like(h_TD, memory_format=torch.contiguous_format)
    loss = h_TD.new_zeros(())
    scale = targets.to(h_TD.dtype).reciprocal()
    out_VD, overwrite = grads.buffer(weight_VD)
    blocks = [slice(row, row + BLOCK) for row in range(0, vocab, BLOCK)]
    for begin in range(0, tokens, chunk):
        h, labels = h_TD[begin : begin + chunk], labels_T[begin : begin + chunk]
        part = buffer_TV[: len(h)]
        for block in blocks:
            part[:, block] = matmul.times_transposed(h, weight_VD[block])
        torch.log_softmax(part, -1, out=part)  # each row is read whole before it is written
        kept = labels != IGNORE_INDEX
        where = labels.clamp(min=0)[:, None]
        loss -= (part.gather(1, where)[:, 0] * kept).sum()
        part.exp_().scatter_add_(1, where, part.new_full((len(h), 1), -1.0))
        part[~kept] = 0
        dh = dh_TD[begin : begin + chunk].zero_()
        for block in blocks:
            dh.addmm_(part[:, block], weight_VD[block])
        mark = grads.owner(weight_VD) if len(h) == tokens else None
        grads.put_product(out_VD, part, h * scale, overwrite=overwrite, mark=mark)
        overwrite = False
    return loss * scale, dh_TD.mul_(scale)


class ChunkedLoss(ChunkedLossWrapper):
    """torchtitan's chunked loss for rows of any length, its chunks as few as the limit allows.

    torchtitan's takes a fixed number of chunks that must divide the row; here the number follows from the batch, and
    the row is padded with ignored targets. A head whose weight is owned is computed by `head_and_loss`.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(ChunkedLossWrapper.Config):
        max_logits_bytes: int = 320 << 20
        """Bytes of one chunk's fp32 logits (batch x tokens x vocabulary x 4); at least one token a row is taken."""
        keep_head: bool = True
        """Leave a gathered FSDP2 head gathered until its unit's backward, as `fsdp_reshard_after_forward` default does;
        torchtitan's loss gives it back twice a pass, so that it is gathered three times."""
        pipelined: bool = False
        """Leave the reduction of an FSDP2 head's gradient to the schedule, which does it once for all microbatches."""

    def __init__(self, config: Config, **options: Any) -> None:
        super().__init__(config, **options)
        self.max_logits_bytes = config.max_logits_bytes
        self.keep_head, self.pipelined = config.keep_head, config.pipelined
        self.plain = type(config.loss_fn) is CrossEntropyLoss.Config

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
        weight = self.lm_head.weight
        if self.plain and pred.requires_grad and global_valid_tokens is not None and grads.usable(weight):
            flat = (pred.detach().flatten(0, 1), labels.flatten())
            loss, dh_TD = head_and_loss(*flat, weight, global_valid_tokens, self.max_logits_bytes)
            return self._gradient_backprop(pred, dh_TD.view(pred.shape), loss, self.lm_head, False), {}
        batch, length = labels.shape
        per_token = batch * weight.shape[0] * 4
        chunk = max(1, min(length, self.max_logits_bytes // per_token))
        self.num_chunks = -(-length // chunk)
        chunk = -(-length // self.num_chunks)
        padding = chunk * self.num_chunks - length
        if padding:
            pred = F.pad(pred, (0, 0, 0, padding))
            labels = F.pad(labels, (0, padding), value=IGNORE_INDEX)
        with seen(self.lm_head, stays=self.keep_head, reduced=not self.pipelined):
            return super().__call__(pred, labels, global_valid_tokens, **loss_inputs)


@contextmanager
def seen(head: Any, *, stays: bool, reduced: bool) -> Iterator[None]:
    """Inside, an FSDP2 head is told less than torchtitan's loss tells it.

    stays: it is not given back. The norm, of the same unit, has its backward next, and then it is.
    reduced: whether its gradient goes to its parts with the last chunk, not with that of the norm.
    """
    if not isinstance(head, FSDPModule):
        yield
        return
    reshard_after_forward, sync = head.set_reshard_after_forward, head.set_requires_gradient_sync
    if stays:
        head.set_reshard_after_forward = lambda _, recurse=True: reshard_after_forward(False, recurse)
        head.reshard = lambda: None
    if not reduced:
        head.set_requires_gradient_sync = lambda _, *, recurse=True: sync(False, recurse=recurse)
    try:
        yield
    finally:
        for name in ("set_reshard_after_forward", "reshard", "set_requires_gradient_sync"):
            head.__dict__.pop(name, None)
