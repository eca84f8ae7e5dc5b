"""What the kernels take of the state buffer, by hand and against what the interpreter counts."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.nki.cases import Case, by_kernel, tensors
from trnt.kernels import hardware
from trnt.kernels.nki import plan
from trnt.kernels.nki.experts_backward import experts_backward
from trnt.kernels.nki.experts_forward import experts_forward
from trnt.kernels.nki.layout import arrange

TRN2 = hardware.core("trn2").sbuf_usable


def test_the_widest_chunk_of_which_two_fit() -> None:
    assert plan.width_that_fits(1000, 10, 32, 100) == 100  # all of it, once
    assert plan.width_that_fits(1000, 10, 32, 101) == 32  # two of 32 columns: 640 bytes
    assert plan.width_that_fits(600, 10, 32, 101) == 0


def test_qwen3_s_experts_by_hand() -> None:
    """D 2048, F 768, bf16 (nki.md, section 5.4): 12,800 bytes for 128 tokens, 73,728 of weights."""
    assert plan.kept(2048, 768, 128, 2) == 2 * 2048 * 2 + 3 * 768 * 2 == 12_800
    assert plan.backward_weights(2048, 768, 2) == 73_728
    assert plan.together(2048, 768, 128, 2, TRN2) == 6


@pytest.mark.parametrize(
    ("D", "F", "B", "size", "blocks"),
    [(64, 32, 128, 2, 6), (64, 32, 256, 2, 3), (64, 32, 512, 2, 1), (7168, 2048, 128, 2, 1), (2880, 2880, 512, 4, 1)],
)
def test_small_experts_have_long_groups_and_large_ones_a_block(D: int, F: int, B: int, size: int, blocks: int) -> None:
    assert plan.together(D, F, B, size, TRN2) == blocks


@pytest.mark.parametrize(
    ("D", "F", "block"),
    [
        (2048, 768, 128),  # Qwen3-30B-A3B: its weights stay
        (2880, 2880, 256),  # GPT-OSS: 50 MB stream for each block
        (4096, 1536, 256),  # Qwen3-235B-A22B
        (7168, 2048, 128),  # DeepSeek-V3: 256 rows leave no room for a chunk of weights
    ],
)
def test_the_rows_of_a_block(D: int, F: int, block: int) -> None:
    assert plan.block_rows(D, F, 2, TRN2) == block
    assert plan.fits(D, F, block, 2, TRN2)
    assert not plan.fits(7168, 2048, 256, 2, TRN2)


def test_when_tokens_are_added_up_early() -> None:
    """Of 64 experts and 8 choices, C(e, 8) / C(64, 8) of 4,096 tokens are done before e: the first 128 before 42."""
    tried = plan.tries(4096, 64, 8)
    assert len(tried) == 32
    assert tried[0] == next(e for e in range(64) if 32 * math.comb(e, 8) / math.comb(64, 8) >= 1.5)
    assert tried == sorted(tried)
    assert max(tried.count(e) for e in range(63)) == 1
    assert tried.count(63) == 3
    assert plan.tries(4096, 8, 8) == [8] * 32  # every token needs the last expert
    assert plan.tries(100, 64, 1) == [64]  # less than a tile and a half is never worth it
    assert plan.tries(512, 4, 1) == [2, 3, 4, 4]


@pytest.mark.parametrize(("block", "tokens"), [(128, 900), (256, 600), (512, 1100)])
@pytest.mark.parametrize("act", ["silu", "clamped"])
def test_the_forward_fits_as_planned(block: int, tokens: int, act: str) -> None:
    """Qwen3's sizes, two experts of which the next one's weights arrive: within the planned bytes, and half of them."""
    D, F = 2048, 768
    x, scores, ids, w1, w2, w3, *_ = tensors(Case(tokens, D, F, 2, 1, block, torch.bfloat16))
    experts_forward(x, *arrange(scores, ids, 2, block).operands, w1, w2, w3, act=act)
    stays, ahead, _, _ = plan.forward_chunks(D, F, block, 2, True, TRN2)
    weights = (2 * 16 * F + 6 * D) * 2 * (2 if ahead else 1)
    assert stays
    used = TRN2 - plan.forward_room(D, F, block, 2, True, TRN2) + weights
    assert used / 2 <= experts_forward.report.peak.sbuf <= used <= TRN2


@pytest.mark.slow
def test_the_longest_group_fits_as_planned() -> None:
    """Six blocks of Qwen3's size and one before: within the planned bytes, which count two blocks arriving."""
    by_kernel(Case(900, 2048, 768, 1, 1, 128, torch.bfloat16))
    peak = experts_backward.report.peak
    used = TRN2 - plan.backward_room(2048, 768, 128, 2, TRN2, True) + 6 * plan.kept(2048, 768, 128, 2) + 73_728
    assert peak.sbuf <= used <= TRN2
