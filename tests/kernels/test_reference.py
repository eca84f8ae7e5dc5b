"""The reference is held to torch's own functions and to values worked out by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from trnt.kernels import reference


def test_attention_of_one_document_is_torch_s_causal_attention() -> None:
    q, k, v = (torch.randn(2, 9, h, 8, dtype=torch.float64) for h in (4, 2, 2))
    positions = torch.arange(9).repeat(2, 1)
    got = reference.attention(q, k, v, positions, 8**-0.5)
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
    )
    assert torch.allclose(got, expected.transpose(1, 2), atol=1e-12)


def test_a_document_of_one_token_attends_to_itself_alone() -> None:
    q, k, v = (torch.randn(1, 3, 1, 4) for _ in range(3))
    got = reference.attention(q, k, v, torch.zeros(1, 3, dtype=torch.int64), 1.0)
    assert torch.equal(got, v)


def test_one_expert_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0]])
    w1, w3 = torch.tensor([[[1.0, 1.0]]]), torch.tensor([[[2.0, 0.0]]])
    w2 = torch.tensor([[[1.0], [10.0]]])
    silu = 3 / (1 + torch.exp(torch.tensor(-3.0)))
    got = reference.experts(x, torch.tensor([1]), w1, w2, w3)
    assert torch.allclose(got, torch.tensor([[1.0, 10.0]]) * silu * 2)


def test_cross_entropy_is_torch_s_sum() -> None:
    logits, labels = torch.randn(7, 11, dtype=torch.float64), torch.tensor([1, -100, 3, 10, 0, -100, 5])
    expected = F.cross_entropy(logits, labels, reduction="sum")
    assert torch.allclose(reference.cross_entropy(logits, labels), expected)
