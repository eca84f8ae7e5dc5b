"""Two things that transformers' interface does not say of a model, found out by running it on a few tokens.

Whether packed documents stay apart: most models make their mask from positions that begin anew, the others are given
one. And whether logits are nothing but the head's product: then a loss may make them chunk by chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trnt.errors import TrntError

TOKENS = 6  # of each of two documents in each of two rows
LEAK = 1e-3  # of the logits' scale: far above rounding, far below what another document's tokens change


@dataclass(frozen=True)
class Traits:
    """own_masks: trnt gives the model its masks; plain_head: logits are the head's product with the last state."""

    own_masks: bool = False
    plain_head: bool = False


def run(
    model: Any, tokens_BL: torch.Tensor, positions_BL: torch.Tensor | None, traits: Traits, *, hidden: bool = False
) -> torch.Tensor:
    """Logits (B, L, V), or the last hidden state (B, L, D); a document begins where positions are 0."""
    inputs: dict[str, Any] = {"input_ids": tokens_BL, "position_ids": positions_BL, "use_cache": False}
    if traits.own_masks:
        inputs["attention_mask"] = masks(model, tokens_BL, positions_BL)
    if hidden:
        return model.base_model(**inputs).last_hidden_state
    return model(**inputs).logits


def masks(model: Any, tokens_BL: torch.Tensor, positions_BL: torch.Tensor | None) -> Any:
    """transformers' masks for packed documents, by kind of layer where a model has several."""
    from transformers.masking_utils import create_masks_for_generate

    like = torch.empty(*tokens_BL.shape, 0, dtype=model.dtype, device=tokens_BL.device)
    return create_masks_for_generate(model.config, like, None, None, position_ids=positions_BL)


@torch.no_grad()
def look(model: Any) -> Traits:
    """Run a whole model, on one device, four or five times. Raises TrntError when documents cannot be kept apart."""
    training = model.training
    model.eval()
    try:
        traits = next((t for t in (Traits(False), Traits(True)) if apart(model, t)), None)
        if traits is None:
            raise TrntError(
                f"packed documents see each other in {type(model).__name__}: a document's logits change with its "
                "neighbour",
                "use --attn-implementation sdpa or eager, or another model",
            )
        return Traits(traits.own_masks, product(model, traits))
    finally:
        model.train(training)


def rows(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, positions) of two rows of two documents, the same every time."""
    device = next(model.parameters()).device
    vocab = model.config.get_text_config().vocab_size
    tokens_BL = torch.randint(vocab, (2, 2 * TOKENS), generator=torch.Generator().manual_seed(0))
    return tokens_BL.to(device), torch.arange(TOKENS, device=device).repeat(2, 2)


def apart(model: Any, traits: Traits) -> bool:
    """Whether the second document's logits stay when every token of the first is another."""
    tokens_BL, positions_BL = rows(model)
    vocab = model.config.get_text_config().vocab_size
    other_BL = tokens_BL.clone()
    other_BL[:, :TOKENS] = (other_BL[:, :TOKENS] + vocab // 2) % vocab
    logits, other = (run(model, ids, positions_BL, traits) for ids in (tokens_BL, other_BL))
    return bool((logits - other)[:, TOKENS:].abs().max() <= LEAK * logits.abs().max())


def product(model: Any, traits: Traits) -> bool:
    """Whether the logits are the head of what the base model gives, and nothing else."""
    head = model.get_output_embeddings()
    if head is None or model.base_model is model:
        return False
    tokens_BL, positions_BL = rows(model)
    logits = run(model, tokens_BL, positions_BL, traits)
    try:
        found = head(run(model, tokens_BL, positions_BL, traits, hidden=True))
    except (AttributeError, TypeError, RuntimeError):
        return False
    # the same product in another shape: a few roundings of the logits' dtype
    close = 8 * torch.finfo(logits.dtype).eps * logits.abs().max()
    return found.shape == logits.shape and bool((found - logits).abs().max() <= close)
