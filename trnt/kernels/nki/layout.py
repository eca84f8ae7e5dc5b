"""Where each routed token goes: blocks of B rows in the order of experts. Static shapes, nothing read back.

Every expert has at least one block, so that an expert without tokens still writes its (zero) gradients. N, the number
of blocks, is a bound: R / B + E, and EMPTY more; the kernels run only those that exist.

A block's results go to a scratch of T x K rows, token by token in the order of their last experts, so that the K rows
of 128 tokens lie together, and the first tokens are complete long before the last expert is through.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from trnt.kernels.nki.plan import EMPTY, P, tiles, tries

BLOCKS = (128, 256, 512)


class Layout(NamedTuple):
    """int32.

    rows_NB3: each row's token, the place of its result, and its affinity (the bits of an fp32 number); T, T K and 0 for
    padding. bounds_E6: each expert's blocks: first, second, third, fourth, the one of which only half the rows are
    used, end (each at most the next). token_PJ: token 128 j + p in the order of last experts, at [p, j]; T behind the
    last. done_J1: whether the 128 tokens of j are complete when `plan.tries` has them added up. top_k: K. position_TK:
    the row of each choice, which no kernel needs.
    """

    rows_NB3: torch.Tensor
    bounds_E6: torch.Tensor
    token_PJ: torch.Tensor
    done_J1: torch.Tensor
    top_k: int
    position_TK: torch.Tensor

    @property
    def operands(self) -> tuple[torch.Tensor | int, ...]:
        """What the forward kernel takes."""
        return self[:-1]


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
    N = routed // block + num_experts + EMPTY
    # A token's place among all by its last expert, and the scratch row of each choice.
    last_T = ids_TK.long().amax(1)
    by_last_T = torch.argsort(last_T, stable=True)
    rank_T = torch.zeros_like(last_T).scatter(0, by_last_T, torch.arange(T, device=device))
    place_R = rank_T[order_R // K] * K + order_R % K
    affinity_R = scores_TK.reshape(-1)[order_R].float().view(torch.int32)
    chosen = torch.stack([(order_R // K).int(), place_R.int(), affinity_R], dim=1)
    rows = torch.tensor([T, routed, 0], dtype=torch.int32, device=device).repeat(N * block, 1)
    rows = rows.scatter(0, row_R[:, None].expand(-1, 3), chosen)
    position = torch.zeros(routed, dtype=torch.int32, device=device).scatter(0, order_R, row_R.int())
    last_E = counts_E - (blocks_E - 1) * block
    half_E = torch.where((last_E <= block // 2) & (blocks_E > 1), end_E - 1, end_E)
    third_E, fourth_E = (torch.minimum(first_E + n, half_E) for n in (2, 3))
    bounds = torch.stack([first_E, first_E + 1, third_E, fourth_E, half_E, end_E], dim=1).int()
    J = tiles(T)
    token_J = torch.full((J * P,), T, dtype=torch.int32, device=device)
    token_J[:T] = by_last_T.int()
    ends = torch.arange(1, J + 1, device=device).mul(P).clamp(max=T) - 1
    tried = torch.tensor(tries(T, num_experts, K), device=device)
    done = (last_T[by_last_T[ends]] < tried) & (tried < num_experts)
    return Layout(
        rows.view(N, block, 3),
        bounds,
        token_J.view(J, P).T.contiguous(),
        done.int()[:, None],
        K,
        position.view(T, K),
    )


class Grouped(NamedTuple):
    """A layout whose blocks are taken several at a time, as the backward kernel takes it. groups_G2: (expert, first
    block) of each group, int32; classes_R2: the groups (first, end) of 1, 2, ... blocks that are the first of their
    expert, and last those that follow on such a one, which all have as many blocks as the last class before it."""

    rows_NB3: torch.Tensor
    groups_G2: torch.Tensor
    classes_R2: torch.Tensor
    token_PJ: torch.Tensor
    top_k: int


def grouped(layout: Layout, most: int) -> Grouped:
    """Every expert's blocks in groups of `most`, what is left over (1 to `most`) as its first group."""
    first_E, *_, end_E = layout.bounds_E6.long().unbind(1)
    count_E = end_E - first_E
    size_E = (count_E - 1) % most + 1
    order_E = torch.argsort(size_E, stable=True)
    further_E = (count_E - size_E) // most
    until_E = further_E.cumsum(0)
    bound = (layout.rows_NB3.shape[0] - EMPTY) // most  # of groups; those that exist come first
    number = torch.arange(bound, device=first_E.device)
    expert = torch.searchsorted(until_E, number, right=True).clamp(max=len(first_E) - 1)
    start = first_E[expert] + size_E[expert] + (number - (until_E - further_E)[expert]) * most
    begins = torch.stack([order_E, first_E[order_E]], dim=1)
    groups = torch.cat([begins, torch.stack([expert, start], dim=1)]).int()
    sizes = torch.arange(1, most + 1, device=first_E.device)
    end_R = torch.searchsorted(size_E[order_E].contiguous(), sizes, right=True)
    end_R = torch.cat([end_R, end_R[-1:] + further_E.sum()])
    classes = torch.stack([torch.cat([end_R.new_zeros(1), end_R[:-1]]), end_R], dim=1).int()
    return Grouped(layout.rows_NB3, groups, classes, layout.token_PJ, layout.top_k)
