"""The router kernel against the reference and torchtitan's own router."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trnt.kernels import reference, sim
from trnt.kernels.nki.route import route

CASES: dict[str, dict[str, Any]] = {
    "Qwen3": {"top_k": 8},
    "Qwen3, not normalised": {"top_k": 8, "normalise": False},
    "top 1": {"top_k": 1, "scale": 2.0},
    "sigmoid": {"top_k": 6, "score": "sigmoid", "scale": 2.5},
    "DeepSeek-V3": {"top_k": 8, "score": "sigmoid", "scale": 2.5, "groups": 8, "limited": 4, "bias": True},
    "groups of two": {"top_k": 2, "score": "sigmoid", "groups": 8, "limited": 2, "experts": 16},
    "GPT-OSS": {"top_k": 4, "score": "softmax_topk"},
    "four experts": {"top_k": 2, "experts": 4},
    "a bias with softmax": {"top_k": 3, "bias": True},
}


def both(case: dict[str, Any], logits: torch.Tensor, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    options = {k: v for k, v in case.items() if k not in ("bias", "experts")}
    bias = torch.randn(logits.shape[1], generator=torch.Generator().manual_seed(9)) if case.get("bias") else None
    got = route(logits, None if bias is None else bias[None], has_bias=bias is not None, **options)
    return got, reference.route(logits.to(dtype), bias_E=None if bias is None else bias.to(dtype), **options)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [1, 128, 300])
def test_choice_and_affinities(name: str, tokens: int) -> None:
    case = CASES[name]
    logits = torch.randn(tokens, case.get("experts", 256), generator=torch.Generator().manual_seed(tokens))
    (affinity, ids), (expected, chosen) = both(case, logits)
    assert torch.equal(ids.long(), chosen)
    # A softmax over 256 in fp32.
    assert torch.allclose(affinity.double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["Qwen3", "sigmoid", "GPT-OSS"])
def test_extreme_logits(name: str) -> None:
    logits = torch.zeros(4, 256)
    logits[0, 3], logits[1, 7], logits[2] = 1e4, -1e4, torch.linspace(-1e4, 1e4, 256)
    # In fp32 a softmax of 10,000 leaves zeros, and equal scores: the choice is fp32's.
    (affinity, ids), (expected, chosen) = both(CASES[name], logits, torch.float32)
    assert affinity.isfinite().all()
    assert torch.equal(ids.long(), chosen)
    assert torch.allclose(affinity, expected, rtol=1e-5, atol=1e-7)


def test_equal_scores_go_to_the_lower_index() -> None:
    _, ids = route(torch.zeros(2, 64), top_k=8)
    assert ids.long().tolist() == [list(range(8))] * 2


def test_torchtitan_s_router_chooses_the_same() -> None:
    from trnt import device

    device.ensure()
    from torchtitan.models.common import Linear
    from torchtitan.models.common.moe import TokenChoiceTopKRouter

    config = TokenChoiceTopKRouter.Config(
        num_experts=64,
        gate=Linear.Config(in_features=64, out_features=64, bias=False),
        num_expert_groups=8,
        num_limited_groups=3,
        top_k=6,
        score_func="sigmoid",
        route_norm=True,
        route_scale=2.5,
    )
    router = config.build()
    with torch.no_grad():
        router.gate.weight.copy_(torch.eye(64))
    logits = torch.randn(1, 50, 64, generator=torch.Generator().manual_seed(2))
    bias = torch.randn(64, generator=torch.Generator().manual_seed(3)) * 0.1
    scores, ids, _ = router(logits, bias)
    options = {"score": "sigmoid", "scale": 2.5, "groups": 8, "limited": 3}
    affinity, chosen = route(logits[0], bias[None], top_k=6, has_bias=True, **options)
    order, ours = ids[0].sort(-1), chosen.long().sort(-1)
    assert torch.equal(order.values, ours.values)
    expected = scores[0].gather(1, order.indices)
    assert torch.allclose(affinity.gather(1, ours.indices), expected, rtol=1e-5)


@pytest.mark.parametrize("wrong", [{"top_k": 9}, {"top_k": 2, "score": "max"}, {"top_k": 2, "groups": 9, "limited": 1}])
def test_what_it_cannot_do_it_says(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        route(torch.zeros(2, 64), **wrong)


def test_it_needs_little_of_the_state_buffer() -> None:
    sim.simulate(route)(torch.zeros(128, 256), top_k=8, score="sigmoid", groups=8, limited=4)
    assert route.report.peak.sbuf < 6_000
    assert route.report.peak.psum_banks == 0
