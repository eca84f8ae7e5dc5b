"""The forward kernel by properties that need no tolerance, or one that is derived."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.nki.cases import Case, hold, tensors
from trnt.kernels import hardware, sim
from trnt.kernels.nki.experts_forward import experts_forward
from trnt.kernels.nki.layout import arrange
from trnt.kernels.nki.plan import EMPTY


def test_expert_i_filled_with_i_finds_a_permutation() -> None:
    """With x = 1 and constant weights c, F-wide: y = F c silu(D c) (D c), known by hand for each expert."""
    T, D, F, E, K = 37, 4, 3, 5, 2
    ids = torch.stack([torch.arange(T) % E, (torch.arange(T) + 2) % E], 1)
    c = torch.arange(1.0, E + 1)
    weights = [c[:, None, None].expand(E, *shape).contiguous() for shape in ((F, D), (D, F), (F, D))]
    scores = torch.tensor([1.0, 100.0]).expand(T, K)
    out, _ = experts_forward(torch.ones(T, D), *arrange(scores, ids, E, 128).operands, *weights)
    z = D * c.double()
    y = F * c.double() * z * torch.sigmoid(z) * z
    expected = y[ids[:, 0]] + 100 * y[ids[:, 1]]
    assert torch.allclose(out.double(), expected[:, None].expand(T, D), rtol=1e-6)


def test_permuting_tokens_permutes_rows() -> None:
    case = Case(50, 24, 16, 4, 2)
    x, scores, ids, w1, w2, w3, *_ = tensors(case)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    out, _ = experts_forward(x, *arrange(scores, ids, 4, 128).operands, w1, w2, w3)
    moved, _ = experts_forward(x[order], *arrange(scores[order], ids[order], 4, 128).operands, w1, w2, w3)
    # The same sums; a product's rows may be summed in another order at another place.
    assert torch.allclose(moved, out[order], rtol=1e-6, atol=1e-6)


def test_permuting_experts_with_their_weights_changes_nothing() -> None:
    case = Case(50, 24, 16, 4, 2)
    x, scores, ids, w1, w2, w3, *_ = tensors(case)
    order = torch.tensor([2, 0, 3, 1])
    out, _ = experts_forward(x, *arrange(scores, ids, 4, 128).operands, w1, w2, w3)
    moved, _ = experts_forward(
        x, *arrange(scores, order.argsort()[ids], 4, 128).operands, w1[order], w2[order], w3[order]
    )
    assert torch.equal(moved, out)


def test_gate_and_up_in_turns_are_the_same() -> None:
    case = Case(40, 24, 20, 3, 2)
    x, scores, ids, w1, w2, w3, *_ = tensors(case)
    layout = arrange(scores, ids, 3, 128)
    apart, _ = experts_forward(x, *layout.operands, w1, w2, w3)
    both = torch.stack([w1, w3], 2).flatten(1, 2).contiguous()
    woven, _ = experts_forward(x, *layout.operands, both, w2, None, interleaved=True)
    assert torch.equal(apart, woven)


def test_a_token_nobody_computes_for_gets_exactly_zero() -> None:
    case = Case(20, 16, 16, 3, 1)
    x, scores, ids, w1, w2, w3, *_ = tensors(case)
    out, _ = experts_forward(x, *arrange(torch.zeros_like(scores), ids, 3, 128).operands, w1, w2, w3)
    assert not out.any()


def test_a_nan_stays_in_its_own_row() -> None:
    case = Case(20, 16, 16, 3, 1)
    x, scores, ids, w1, w2, w3, *_ = tensors(case)
    x[5] = float("nan")
    out, _ = experts_forward(x, *arrange(scores, ids, 3, 128).operands, w1, w2, w3)
    assert out.isnan().all(1).nonzero().flatten().tolist() == [5]


def test_nothing_is_saved_where_nothing_is_asked() -> None:
    x, scores, ids, w1, w2, w3, *_ = tensors(Case(20, 16, 16, 3, 1))
    layout = arrange(scores, ids, 3, 128)
    kept, saved = experts_forward(x, *layout.operands, w1, w2, w3)
    alone = experts_forward(x, *layout.operands, w1, w2, w3, save=False)
    assert saved.shape == (layout.rows_NB3.shape[0] - EMPTY, 128, 2, 1, 128)
    assert torch.equal(kept, alone)


@pytest.mark.parametrize("block", [128, 256, 512])
def test_at_the_real_size_the_state_buffer_holds_it(block: int) -> None:
    """Qwen3-30B-A3B's 2048 x 768: the peak is below what trn2 has, and PSUM's banks suffice."""
    x, scores, ids, w1, w2, w3, *_ = tensors(Case(130, 2048, 768, 1, 1, dtype=torch.bfloat16))
    experts_forward(x, *arrange(scores, ids, 1, block).operands, w1, w2, w3)
    peak = experts_forward.report.peak
    assert peak.sbuf <= hardware.core("trn2").sbuf_usable
    assert 1 <= peak.psum_banks <= 8


def test_a_block_of_another_size_is_refused() -> None:
    x, scores, ids, w1, w2, w3, *_ = tensors(Case(20, 16, 16, 3, 1))
    with pytest.raises(AssertionError, match="128, 256 or 512"):
        experts_forward(x, *arrange(scores, ids, 3, 64).operands, w1, w2, w3)


def test_sixteen_choices_are_added_up_and_more_are_refused() -> None:
    hold(Case(140, 16, 16, 20, 16))
    x, scores, ids, w1, w2, w3, *_ = tensors(Case(20, 16, 16, 20, 17))
    with pytest.raises(AssertionError, match="at most 16 rows"):
        experts_forward(x, *arrange(scores, ids, 20, 128).operands, w1, w2, w3)


def test_trn1_and_trn3_run_the_same_source(monkeypatch: pytest.MonkeyPatch) -> None:
    x, scores, ids, w1, w2, w3, *_ = tensors(Case(20, 16, 16, 3, 2))
    layout = arrange(scores, ids, 3, 128)
    here, _ = experts_forward(x, *layout.operands, w1, w2, w3)
    for target in ("trn1", "trn3"):
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
        there, _ = sim.simulate(experts_forward)(x, *layout.operands, w1, w2, w3)
        assert torch.equal(here, there)
