"""A model's widths, and documents that add up."""

from __future__ import annotations

import pytest

from trnt.benching.sizes import sizes_of
from trnt.errors import UsageError
from trnt.models import registry


def test_the_sizes_of_a_mixture() -> None:
    found = sizes_of(registry.get("qwen3-30b-a3b").cut(None, 64), 512)
    assert (found.hidden_size, found.expert_size, found.num_experts, found.top_k) == (2048, 768, 64, 8)
    assert found.expert_weights == 3 * 64 * 768 * 2048
    assert found.rows == 4096


@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 100])
def test_documents_are_all_tokens(tokens: int) -> None:
    lengths = sizes_of(registry.get("qwen3-tiny"), tokens).documents()
    assert sum(lengths) == tokens
    assert min(lengths) > 0


def test_attention_s_flops_are_counted_pair_by_pair() -> None:
    found = sizes_of(registry.get("qwen3-tiny"), 16)
    pairs = sum(1 for length in found.documents() for query in range(length) for _ in range(query + 1))
    assert found.attention_flops() == 4 * found.num_heads * found.head_dim * pairs


def test_no_tokens_are_refused() -> None:
    with pytest.raises(UsageError, match="--tokens 0"):
        sizes_of(registry.get("qwen3-tiny"), 0)


@pytest.mark.parametrize("name", registry.names())
def test_every_model_has_sizes(name: str) -> None:
    found = sizes_of(registry.get(name), 8)
    assert found.hidden_size > 0
    assert (found.expert_size > 0) == (found.num_experts > 0)
