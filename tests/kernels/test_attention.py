"""DocumentAttention in a whole model: documents packed in a row never see each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchtitan.models.common.attention import create_varlen_metadata_for_document

from trnt.kernels import reference
from trnt.kernels.attention import DocumentAttention, Sinks, document_mask, masked_attention


def positions(*lengths: int) -> torch.Tensor:
    return torch.cat([torch.arange(n) for n in lengths])[None]


@pytest.mark.parametrize("name", ["qwen3-tiny", "qwen3-tiny-moe"])
def test_a_document_s_logits_do_not_change_with_its_neighbour(name: str, tiny_model: Callable[..., Any]) -> None:
    model = tiny_model(name)
    ids = torch.randint(4096, (1, 40))
    where = positions(13, 16, 11)

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(tokens, positions=where, attention_masks=model.get_attention_masks(where))

    before = logits(ids)
    changed = ids.clone()
    changed[0, 13:29] = (changed[0, 13:29] + 1) % 4096
    after = logits(changed)
    # attention is bit-equal; the experts' matmuls see other batch sizes, which may move the last bit
    assert torch.allclose(before[0, :13], after[0, :13], rtol=0, atol=1e-5)
    assert torch.allclose(before[0, 29:], after[0, 29:], rtol=0, atol=1e-5)
    assert (before[0, 13:29] - after[0, 13:29]).abs().max() > 1e-2
    alone = torch.randint(4096, (1, 40))
    alone[0, :11] = ids[0, 29:]
    with torch.no_grad():
        row = positions(11, 29)
        separate = model(alone, positions=row, attention_masks=model.get_attention_masks(row))
    assert torch.allclose(before[0, 29:], separate[0, :11], rtol=0, atol=1e-5)


def module(**changes: object) -> DocumentAttention:
    return DocumentAttention.Config(**changes).build()  # type: ignore[arg-type]


def test_two_rows_and_grouped_heads_equal_the_reference() -> None:
    q, k, v = (torch.randn(2, 12, h, 8) for h in (6, 2, 2))
    where = torch.cat([positions(5, 7), positions(12)])
    masks = create_varlen_metadata_for_document(where)
    got = module()(q, k, v, attention_masks=masks, scale=0.2, enable_gqa=True)
    assert torch.allclose(got, reference.attention(q, k, v, where, 0.2), atol=1e-5)


def test_without_boundaries_a_row_is_one_document() -> None:
    q, k, v = (torch.randn(2, 12, 4, 8) for _ in range(3))
    where = torch.arange(12).repeat(2, 1)
    assert torch.allclose(module()(q, k, v), reference.attention(q, k, v, where, 8**-0.5), atol=1e-5)


def test_the_dense_mask_of_other_devices_says_the_same() -> None:
    where = torch.cat([positions(5, 7), positions(1, 11)])
    masks = create_varlen_metadata_for_document(where)
    document = (where == 0).cumsum(1)
    expected = torch.ones(12, 12, dtype=torch.bool).tril() & (document[:, :, None] == document[:, None, :])
    assert torch.equal(document_mask(masks.cu_seq_q, 2, 12), expected)


def test_sinks_and_windows_equal_the_reference_here_and_on_other_devices() -> None:
    q, k, v = (torch.randn(2, 12, h, 8) for h in (6, 2, 2))
    where = torch.cat([positions(3, 9), positions(12)])
    masks = create_varlen_metadata_for_document(where)
    sinks = torch.linspace(-1, 1, 6)
    expected = reference.attention(q, k, v, where, 0.2, sinks_H=sinks, window=4)
    windowed = module(window_size=(3, 0))
    got = windowed(q, k, v, attention_masks=masks, scale=0.2, enable_gqa=True, out_transform=Sinks(sinks))
    assert torch.allclose(got, expected, atol=1e-5)
    mask = document_mask(masks.cu_seq_q, 2, 12, 4)
    assert torch.allclose(masked_attention(q, k, v, mask, 0.2, Sinks(sinks)), expected, atol=1e-5)


def test_what_the_kernel_cannot_do_is_refused() -> None:
    for size in ((128, 1), (-1, -1)):
        with pytest.raises(ValueError, match="window"):
            module(window_size=size)
    q, k, v = (torch.randn(1, 4, 2, 8) for _ in range(3))
    with pytest.raises(ValueError, match="out_transform"):
        module()(q, k, v, out_transform=lambda out, lse: out)
