"""Shares cover all experts once and balance tokens; work in threads is the work, and its errors come out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trnt.kernels import threads


@given(st.lists(st.integers(0, 50), min_size=1, max_size=70), st.integers(1, 8))
def test_shares_cover_every_expert_once_in_order(counts: list[int], number: int) -> None:
    found = threads.shares(counts, number)
    assert [index for part in found for index in part] == list(range(len(counts)))
    assert len(found) <= number
    assert all(len(part) for part in found)


def test_even_counts_are_shared_evenly() -> None:
    assert threads.shares([4] * 64, 2) == [range(32), range(32, 64)]


def test_every_part_is_worked_on_and_the_thread_count_comes_back() -> None:
    before = torch.get_num_threads()
    done: list[int] = []
    threads.spread([range(3), range(3, 5)], lambda part: done.extend(part))
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert torch.get_num_threads() == before


def test_an_error_in_a_part_comes_out() -> None:
    def fail(part: range) -> None:
        raise RuntimeError(f"part {part.start}")

    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="part 0"):
        threads.spread([range(3), range(3, 5)], fail)
    assert torch.get_num_threads() == before


def test_gradients_are_not_recorded_in_a_part() -> None:
    modes: list[bool] = []
    threads.spread([range(1), range(1, 2)], lambda part: modes.append(torch.is_grad_enabled()))
    assert not any(modes) or torch.get_num_threads() < 2
