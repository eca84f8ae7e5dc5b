"""Blocks of tokens in the order of experts, by hand and by what must hold for any routing."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.nki.cases import Case, choices
from trnt.kernels.nki.layout import BLOCKS, arrange, grouped


def test_by_hand() -> None:
    ids = torch.tensor([[2, 0], [2, 0], [0, 2]])
    scores = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    layout = arrange(scores, ids, 3, 2)
    # Expert 0 gets tokens 0, 1, 2: two blocks; expert 1 nothing: one empty block; expert 2 tokens 0, 1, 2: two blocks.
    assert layout.bounds_E6.tolist() == [[0, 1, 2, 2, 2, 1], [2, 3, 3, 3, 3, 3], [3, 4, 5, 5, 5, 4]]
    assert layout.token_NB.tolist() == [[0, 1], [2, 3], [3, 3], [0, 1], [2, 3], [3, 3]]
    expected = [[0.2, 0.4], [0.5, 0], [0, 0], [0.1, 0.3], [0.6, 0], [0, 0]]
    assert torch.allclose(layout.affinity_NB, torch.tensor(expected))
    assert layout.position_TK.tolist() == [[6, 0], [7, 1], [2, 8]]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("routing", ["random", "one", "few"])
def test_every_choice_has_its_own_row_in_a_block_of_its_expert(block: int, routing: str) -> None:
    case = Case(700, 1, 1, 9, 3, block, routing=routing)
    ids = choices(case, torch.Generator().manual_seed(0))
    scores = torch.rand(700, 3)
    layout = arrange(scores, ids, 9, block)
    rows = layout.position_TK.long()
    assert len(rows.unique()) == 2100
    token, affinity = layout.token_NB.flatten(), layout.affinity_NB.flatten()
    assert torch.equal(token[rows], torch.arange(700, dtype=torch.int32)[:, None].expand(700, 3))
    assert torch.equal(affinity[rows], scores)
    first, *_, end, _ = layout.bounds_E6.long().unbind(1)
    assert ((rows // block >= first[ids]) & (rows // block < end[ids])).all()
    assert (end - first >= 1).all()
    assert end[-1] <= layout.token_NB.shape[0]
    assert (layout.bounds_E6[:, 5] < layout.token_NB.shape[0]).all()
    padding = torch.ones_like(token, dtype=torch.bool)
    padding[rows.flatten()] = False
    assert (token[padding] == 700).all()
    assert not affinity[padding].any()


def test_a_last_block_of_at_most_half_its_rows_is_told() -> None:
    """9, 10, 6 and 11 tokens in blocks of 4: the third blocks hold 1, 2 and 3; two blocks are never halved."""
    ids = torch.tensor([0] * 9 + [1] * 10 + [2] * 6 + [3] * 11)[:, None]
    layout = arrange(torch.ones(36, 1), ids, 4, 4)
    assert layout.bounds_E6[:, :5].tolist() == [[0, 1, 2, 2, 3], [3, 4, 5, 5, 6], [6, 7, 8, 8, 8], [8, 9, 10, 11, 11]]


def test_groups_by_hand() -> None:
    """Five, one and two blocks: in groups of at most 2 these are 1 + 2 + 2, 1 and 2."""
    ids = torch.tensor([0] * 10 + [2] * 3)[:, None]
    layout = arrange(torch.ones(13, 1), ids, 3, 2)
    assert layout.bounds_E6[:, :5].tolist() == [[0, 1, 2, 5, 5], [5, 6, 6, 6, 6], [6, 7, 8, 8, 8]]
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
            assert layout.bounds_E6[expert, 0] <= block <= layout.bounds_E6[expert, 4] - size
            blocks += range(block, block + size)
            seen.append(expert)
    assert sorted(blocks) == list(range(int(layout.bounds_E6[-1, 4])))
    assert sorted(seen[:9]) == list(range(9))
