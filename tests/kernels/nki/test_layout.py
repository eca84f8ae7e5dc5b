"""Blocks of tokens in the order of experts, by hand and by what must hold for any routing."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.nki.cases import Case, choices
from trnt.kernels.nki.layout import BLOCKS, arrange


def test_by_hand() -> None:
    ids = torch.tensor([[2, 0], [2, 0], [0, 2]])
    scores = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    layout = arrange(scores, ids, 3, 2)
    # Expert 0 gets tokens 0, 1, 2: two blocks; expert 1 nothing: one empty block; expert 2 tokens 0, 1, 2: two blocks.
    assert layout.bounds_E3.tolist() == [[0, 1, 2], [2, 3, 3], [3, 4, 5]]
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
    first, _, end = layout.bounds_E3.long().unbind(1)
    assert ((rows // block >= first[ids]) & (rows // block < end[ids])).all()
    assert (end - first >= 1).all()
    assert end[-1] <= layout.token_NB.shape[0]
    padding = torch.ones_like(token, dtype=torch.bool)
    padding[rows.flatten()] = False
    assert (token[padding] == 700).all()
    assert not affinity[padding].any()
