"""The chunked loss is the plain one, for rows of any length, within its limit of logits."""

from __future__ import annotations

import pytest
import torch

from trnt.kernels import reference
from trnt.kernels.loss import ChunkedLoss


class Head(torch.nn.Linear):
    """Counts the logits of each call."""

    largest = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        Head.largest = max(Head.largest, out.numel())
        return out


@pytest.mark.parametrize("length", [1, 7, 31, 64])
@pytest.mark.parametrize("limit", [1, 2 * 50 * 4 * 5, 1 << 30])
def test_loss_and_gradients_equal_the_plain_loss(length: int, limit: int) -> None:
    torch.manual_seed(length)
    head = Head(8, 50, bias=False)
    hidden = torch.randn(2, length, 8, requires_grad=True)
    labels = torch.randint(50, (2, length))
    labels[0, : length // 3] = -100
    valid = (labels != -100).sum()
    expected = reference.cross_entropy(head(hidden).flatten(0, 1), labels.flatten()) / valid
    wanted = torch.autograd.grad(expected, (hidden, head.weight))
    loss_fn = ChunkedLoss(ChunkedLoss.Config(max_logits_bytes=limit))
    loss_fn.set_lm_head(head)
    Head.largest = 0
    # a node before it, as in the trainer: the wrapper carries the gradient on through the graph
    loss, _ = loss_fn(hidden * 1.0, labels, valid, positions=torch.zeros(2, length))
    loss.backward()
    assert Head.largest * 4 <= max(limit, 2 * 50 * 4)
    # fp32 sums in another order
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert torch.allclose(hidden.grad, wanted[0], rtol=1e-4, atol=1e-7)  # type: ignore[arg-type]
    assert torch.allclose(head.weight.grad, wanted[1], rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]
