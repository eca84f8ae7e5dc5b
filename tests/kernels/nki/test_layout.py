"""Blocks of tokens in the order of experts, by hand and by what must hold for any routing."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.nki.cases import Case, choices
from trnt.kernels.nki.layout import BLOCKS, Layout, arrange, grouped
from trnt.kernels.nki.plan import EMPTY, tries


def affinities(layout: Layout) -> torch.Tensor:
    return layout.rows_NB3[..., 2].contiguous().view(torch.float32)


def test_by_hand() -> None:
    ids = torch.tensor([[2, 0], [1, 0], [0, 2]])
    scores = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    layout = arrange(scores, ids, 4, 2)
    # Expert 0 gets tokens 0, 1, 2: two blocks; expert 1 token 1; expert 2 tokens 0 and 2; expert 3 an empty block.
    bounds = [[0, 1, 1, 1, 1, 2], [2, 3, 3, 3, 3, 3], [3, 4, 4, 4, 4, 4], [4, 5, 5, 5, 5, 5]]
    assert layout.bounds_E6.tolist() == bounds
    nobody = [[3, 3], [3, 3]]  # for each 6 // 2 + 4 + EMPTY blocks: 5 are used
    assert layout.rows_NB3[..., 0].tolist() == [[0, 1], [2, 3], [1, 3], [0, 2], [3, 3], *nobody, [3, 3], [3, 3]]
    expected = [[0.2, 0.4], [0.5, 0], [0.3, 0], [0.1, 0.6], [0, 0]]
    assert torch.allclose(affinities(layout)[:5], torch.tensor(expected))
    assert not affinities(layout)[5:].any()
    # Token 1 is done first, after expert 1: its two rows are the scratch's first.
    assert layout.token_PJ[:4, 0].tolist() == [1, 0, 2, 3]
    assert layout.rows_NB3[..., 1].tolist()[:5] == [[3, 1], [4, 6], [0, 6], [2, 5], [6, 6]]
    assert layout.position_TK.tolist() == [[6, 0], [4, 1], [2, 7]]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("routing", ["random", "one", "few"])
def test_every_choice_has_its_own_row_in_a_block_of_its_expert(block: int, routing: str) -> None:
    case = Case(700, 1, 1, 9, 3, block, routing=routing)
    ids = choices(case, torch.Generator().manual_seed(0))
    scores = torch.rand(700, 3)
    layout = arrange(scores, ids, 9, block)
    rows = layout.position_TK.long()
    assert len(rows.unique()) == 2100
    token, place = layout.rows_NB3[..., 0].flatten(), layout.rows_NB3[..., 1].flatten()
    affinity = affinities(layout).flatten()
    assert torch.equal(token[rows], torch.arange(700, dtype=torch.int32)[:, None].expand(700, 3))
    assert torch.equal(affinity[rows], scores)
    first, *_, end = layout.bounds_E6.long().unbind(1)
    assert ((rows // block >= first[ids]) & (rows // block < end[ids])).all()
    assert (end - first >= 1).all()
    assert end[-1] <= layout.rows_NB3.shape[0] - EMPTY
    padding = torch.ones_like(token, dtype=torch.bool)
    padding[rows.flatten()] = False
    assert (token[padding] == 700).all()
    assert (place[padding] == 2100).all()
    assert not affinity[padding].any()
    # The scratch: every token's choices together in their order, tokens by their last experts.
    order = layout.token_PJ.T.flatten()
    assert (order[700:] == 700).all()
    order = order[:700].long()
    assert torch.equal(place[rows[order]].flatten(), torch.arange(2100, dtype=torch.int32))
    last = ids.amax(1)[order]
    assert torch.equal(last, last.sort().values)


@pytest.mark.parametrize("routing", ["random", "one", "few"])
def test_tokens_are_told_done_only_when_their_last_expert_is_through(routing: str) -> None:
    case = Case(2000, 1, 1, 32, 4, routing=routing)
    ids = choices(case, torch.Generator().manual_seed(0))
    layout = arrange(torch.rand(2000, 4), ids, 32, 128)
    tried, told = tries(2000, 32, 4), layout.done_J1[:, 0].tolist()
    for j, (expert, done) in enumerate(zip(tried, told, strict=True)):
        tokens = layout.token_PJ[:, j]
        last = int(ids[tokens[tokens < 2000].long()].max())
        assert done == (expert < 32 and last < expert)
    assert sum(told) == {"random": 13, "one": 0, "few": 13}[routing]


def test_a_last_block_of_at_most_half_its_rows_is_told() -> None:
    """9, 10, 5 and 15 tokens in blocks of 4: the last hold 1, 2, 1 and 3; one token alone is no half block."""
    ids = torch.tensor([0] * 9 + [1] * 10 + [2] * 5 + [3] * 15 + [4])[:, None]
    layout = arrange(torch.ones(40, 1), ids, 5, 4)
    bounds = [
        [0, 1, 2, 2, 2, 3],
        [3, 4, 5, 5, 5, 6],
        [6, 7, 7, 7, 7, 8],
        [8, 9, 10, 11, 12, 12],
        [12, 13, 13, 13, 13, 13],
    ]
    assert layout.bounds_E6.tolist() == bounds


def test_groups_by_hand() -> None:
    """Five, one and two blocks: in groups of at most 2 these are 1 + 2 + 2, 1 and 2."""
    ids = torch.tensor([0] * 10 + [2] * 3)[:, None]
    layout = arrange(torch.ones(13, 1), ids, 3, 2)
    assert layout.bounds_E6[:, [0, 5]].tolist() == [[0, 5], [5, 6], [6, 8]]
    found = grouped(layout, 2)
    assert found.classes_R2.tolist() == [[0, 2], [2, 3], [3, 5]]
    assert found.groups_G2[:5].tolist() == [[0, 0], [1, 5], [2, 6], [0, 1], [0, 3]]


@pytest.mark.parametrize("most", [1, 2, 3, 6])
@pytest.mark.parametrize("routing", ["random", "one", "few"])
def test_the_groups_hold_every_block_once_and_an_expert_s_first_group_comes_first(most: int, routing: str) -> None:
    case = Case(3000, 1, 1, 9, 3, 128, routing=routing)
    layout = arrange(torch.rand(3000, 3), choices(case, torch.Generator().manual_seed(0)), 9, 128)
    found = grouped(layout, most)
    sizes = [*range(1, most + 1), most]
    blocks, seen = [], []
    assert len(found.classes_R2) == most + 1
    for size, (first, end) in zip(sizes, found.classes_R2.tolist(), strict=True):
        for expert, block in found.groups_G2[first:end].tolist():
            assert layout.bounds_E6[expert, 0] <= block <= layout.bounds_E6[expert, 5] - size
            blocks += range(block, block + size)
            seen.append(expert)
    assert sorted(blocks) == list(range(int(layout.bounds_E6[-1, 5])))
    assert sorted(seen[:9]) == list(range(9))
