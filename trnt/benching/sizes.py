"""The sizes a case runs at: a model's widths and a number of tokens. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from trnt.errors import UsageError
from trnt.models.registry import ModelEntry


@dataclass(frozen=True)
class Sizes:
    """Widths of one model's layer, and the tokens of one call."""

    model: str
    tokens: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_experts: int
    top_k: int
    expert_size: int
    """The experts' intermediate size; 0 for a dense model."""

    @property
    def expert_weights(self) -> int:
        """Elements of all experts' weights in a layer."""
        return 3 * self.num_experts * self.expert_size * self.hidden_size

    @property
    def rows(self) -> int:
        """Rows that experts compute: tokens x top_k."""
        return self.tokens * self.top_k

    def documents(self) -> list[int]:
        """Lengths of the documents that the tokens are: a half, a quarter, an eighth and the rest."""
        parts = [self.tokens // 2, self.tokens // 4, self.tokens // 8]
        return [length for length in (*parts, self.tokens - sum(parts)) if length]

    def attention_flops(self) -> float:
        """Of causal attention's forward inside the documents: two products over half of each square."""
        return 2.0 * self.num_heads * self.head_dim * sum(length * (length + 1) for length in self.documents())


def sizes_of(entry: ModelEntry, tokens: int) -> Sizes:
    """The sizes of a model. Raises UsageError for fewer than one token."""
    if tokens < 1:
        raise UsageError(f"--tokens {tokens}: at least one", "leave --tokens out for each case's own number")
    size = entry.size
    return Sizes(
        model=entry.name,
        tokens=tokens,
        hidden_size=size.hidden_size,
        num_heads=size.num_heads,
        num_kv_heads=size.num_kv_heads,
        head_dim=size.head_dim,
        vocab_size=size.vocab_size,
        num_experts=size.num_experts,
        top_k=size.top_k,
        expert_size=size.moe_intermediate_size,
    )
