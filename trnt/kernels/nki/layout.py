"""Where each routed token goes: blocks of B rows in the order of experts. Static shapes, nothing read back.

Every expert has at least one block, so that an expert without tokens still writes its (zero) gradients. N, the number
of blocks, is a bound: R / B + E; the kernels run only those that exist.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

BLOCKS = (128, 256, 512)


class Layout(NamedTuple):
    """int32 but for the affinities (fp32). token_NB: the token of each row, T for padding; affinity_NB: 0 for padding;
    bounds_E3: the blocks of each expert: first, first + 1, end; position_TK: the row of each choice."""

    token_NB: torch.Tensor
    affinity_NB: torch.Tensor
    bounds_E3: torch.Tensor
    position_TK: torch.Tensor


def arrange(scores_TK: torch.Tensor, ids_TK: torch.Tensor, num_experts: int, block: int) -> Layout:
    """The layout of one batch. ids below num_experts, no expert twice for a token; scores of any float dtype."""
    T, K = ids_TK.shape
    routed = T * K
    device = ids_TK.device
    ids_R = ids_TK.reshape(-1).long()
    order_R = torch.argsort(ids_R, stable=True)
    counts_E = torch.zeros(num_experts, dtype=torch.long, device=device).scatter_add_(0, ids_R, torch.ones_like(ids_R))
    blocks_E = ((counts_E + block - 1) // block).clamp(min=1)
    end_E = blocks_E.cumsum(0)
    first_E = end_E - blocks_E
    before_E = counts_E.cumsum(0) - counts_E
    sorted_R = ids_R[order_R]
    rank_R = torch.arange(routed, device=device) - before_E[sorted_R]
    row_R = first_E[sorted_R] * block + rank_R
    N = routed // block + num_experts
    token = torch.full((N * block,), T, dtype=torch.int32, device=device)
    token = token.scatter(0, row_R, (order_R // K).int())
    affinity = torch.zeros(N * block, dtype=torch.float32, device=device)
    affinity = affinity.scatter(0, row_R, scores_TK.reshape(-1)[order_R].float())
    position = torch.zeros(routed, dtype=torch.int32, device=device).scatter(0, order_R, row_R.int())
    bounds = torch.stack([first_E, first_E + 1, end_E], dim=1).int()
    return Layout(token.view(N, block), affinity.view(N, block), bounds, position.view(T, K))
