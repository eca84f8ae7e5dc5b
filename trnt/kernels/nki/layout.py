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
    bounds_E6: each expert's blocks: first, first + 1, the third, the first of which only half the rows are used, end
    (each at most the end), and some block after the first; position_TK: the row of each choice."""

    token_NB: torch.Tensor
    affinity_NB: torch.Tensor
    bounds_E6: torch.Tensor
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
    third_E = torch.minimum(first_E + 2, end_E)
    last_E = counts_E - (blocks_E - 1) * block
    half_E = torch.where((last_E <= block // 2) & (blocks_E > 2), end_E - 1, end_E)
    after_E = (first_E + 1).clamp(max=N - 1)
    bounds = torch.stack([first_E, first_E + 1, third_E, half_E, end_E, after_E], dim=1).int()
    return Layout(token.view(N, block), affinity.view(N, block), bounds, position.view(T, K))


class Grouped(NamedTuple):
    """A layout whose blocks are taken several at a time. groups_G2: (expert, first block) of each group, int32;
    classes_R2: the groups (first, end) of 1, 2, ... blocks that are the first of their expert, and last those that
    follow on such a one, which all have as many blocks as the last class before it."""

    token_NB: torch.Tensor
    affinity_NB: torch.Tensor
    groups_G2: torch.Tensor
    classes_R2: torch.Tensor
    position_TK: torch.Tensor


def grouped(layout: Layout, most: int) -> Grouped:
    """Every expert's blocks in groups of `most`, what is left over (1 to `most`) as its first group."""
    first_E, *_, end_E, _ = layout.bounds_E6.long().unbind(1)
    count_E = end_E - first_E
    size_E = (count_E - 1) % most + 1
    order_E = torch.argsort(size_E, stable=True)
    further_E = (count_E - size_E) // most
    until_E = further_E.cumsum(0)
    number = torch.arange(layout.token_NB.shape[0] // most, device=first_E.device)  # those that exist come first
    expert = torch.searchsorted(until_E, number, right=True).clamp(max=len(first_E) - 1)
    start = first_E[expert] + size_E[expert] + (number - (until_E - further_E)[expert]) * most
    begins = torch.stack([order_E, first_E[order_E]], dim=1)
    groups = torch.cat([begins, torch.stack([expert, start], dim=1)]).int()
    sizes = torch.arange(1, most + 1, device=first_E.device)
    end_R = torch.searchsorted(size_E[order_E].contiguous(), sizes, right=True)
    end_R = torch.cat([end_R, end_R[-1:] + further_E.sum()])
    classes = torch.stack([torch.cat([end_R.new_zeros(1), end_R[:-1]]), end_R], dim=1).int()
    return Grouped(layout.token_NB, layout.affinity_NB, groups, classes, layout.position_TK)
