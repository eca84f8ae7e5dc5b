"""Both kernels against the reference in float64: outputs and every gradient, over shapes, routings and dtypes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.nki.cases import Case, by_kernel, hold, tensors
from trnt.kernels import reference
from trnt.kernels.nki.experts_backward import experts_backward
from trnt.kernels.nki.experts_forward import experts_forward
from trnt.kernels.nki.layout import arrange, grouped

BASE = Case(T=70, D=48, F=40, E=5, K=2)
BF16 = torch.bfloat16

CASES = {
    "as usual": BASE,
    "one token": BASE.but(T=1),
    "one expert": BASE.but(E=1, K=1),
    "all tokens to one expert": BASE.but(T=300, routing="one", K=1),
    "idle experts": BASE.but(E=8, K=2, routing="few"),
    "exactly a block": BASE.but(T=128, E=1, K=1),
    "a block and one": BASE.but(T=129, E=1, K=1),
    "a block less one": BASE.but(T=127, E=1, K=1),
    "top 8 of 8": BASE.but(E=8, K=8),
    "several blocks of one expert": BASE.but(T=400, E=2, K=2),
    "more blocks than a group holds": BASE.but(T=1000, E=2, K=1, routing="one"),
    "half a block at the end": BASE.but(T=300, E=1, K=1, bias=True),
    "half a block of 256": BASE.but(T=600, E=1, K=1, B=256),
    "three groups, biases": BASE.but(T=1700, E=1, K=1, bias=True),
    "blocks of 256": BASE.but(T=300, B=256),
    "blocks of 512": BASE.but(T=300, B=512),
    "D over one tile": BASE.but(D=300),
    "F over one tile": BASE.but(F=200),
    "both, by one": BASE.but(D=129, F=257),
    "more than one bank": BASE.but(D=700, F=530),
    "sizes of one": BASE.but(D=1, F=1),
    "affinities of 10,000": BASE.but(affinity=1e4),
    "affinities of 0": BASE.but(affinity=0.0),
    "tiny affinities": BASE.but(affinity=1e-30),
    "biases": BASE.but(bias=True),
    "biases, idle experts": BASE.but(bias=True, E=8, routing="few"),
    "GPT-OSS": BASE.but(act="clamped", bias=True, interleaved=True, scale=5),
    "GPT-OSS, apart": BASE.but(act="clamped", bias=True, scale=5),
    "GPT-OSS, no bias": BASE.but(act="clamped", scale=5, D=200),
    "in turns": BASE.but(interleaved=True, F=130),
    "bf16": BASE.but(dtype=BF16, D=256, F=192),
    "bf16, several blocks": BASE.but(dtype=BF16, T=400, E=2, D=256, F=192),
    "bf16, three groups": BASE.but(dtype=BF16, T=1700, E=1, K=1, D=256, F=192),
    "bf16, GPT-OSS": BASE.but(dtype=BF16, act="clamped", bias=True, interleaved=True, scale=5, D=320, F=160),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name: str) -> None:
    hold(CASES[name])


REAL = {
    "Qwen3-30B-A3B": Case(130, 2048, 768, 2, 1, 512, BF16),
    "Qwen3-235B-A22B": Case(20, 4096, 1536, 1, 1, 256, BF16),
    "DeepSeek-V3 16B": Case(20, 2048, 1408, 1, 1, 256, BF16),
    "DeepSeek-V3 671B": Case(20, 7168, 2048, 1, 1, 128, BF16),
    "GPT-OSS 20b": Case(20, 2880, 2880, 1, 1, 256, BF16, act="clamped", bias=True, interleaved=True, scale=3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_at_the_real_sizes(name: str) -> None:
    hold(REAL[name])


@settings(max_examples=15, deadline=None)
@given(
    T=st.integers(1, 150),
    D=st.integers(1, 200),
    F=st.integers(1, 200),
    E=st.integers(1, 8),
    K=st.integers(1, 8),
    B=st.sampled_from([128, 256]),
    bias=st.booleans(),
    act=st.sampled_from(["silu", "clamped"]),
    routing=st.sampled_from(["random", "one", "few"]),
    seed=st.integers(0, 99),
)
def test_any_shape(**shape: object) -> None:
    case = Case(**shape)  # type: ignore[arg-type]
    # Of one element, a sum may be a hundredth of its terms.
    hold(case.but(K=min(case.K, case.E)), room=100)


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_however_many_blocks_are_taken_together(most: int) -> None:
    """Sums in another order, and nothing else."""
    case = BASE.but(T=600, E=3, K=2)
    x, scores, ids, w1, w2, w3, *_, dout = tensors(case)
    layout = arrange(scores, ids, case.E, case.B)
    _, saved = experts_forward(x, *layout.operands, w1, w2, w3)
    found = experts_backward(dout, x, *grouped(layout, most), saved, w1, w2, w3)
    one = experts_backward(dout, x, *grouped(layout, 1), saved, w1, w2, w3)
    for got, expected in zip(found, one, strict=True):
        blocks = int(layout.bounds_E6[-1, 5])
        got, expected = (t[:blocks] if t.shape[1] == case.B else t for t in (got, expected))
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_an_expert_without_tokens_has_a_gradient_of_exactly_zero() -> None:
    found = by_kernel(BASE.but(E=8, K=2, routing="few", bias=True))
    for name in ("dw1", "dw2", "dw3", "db1", "db2", "db3"):
        assert not found[name][4:].any(), name
        assert found[name][:2].any(), name


def test_at_the_exact_limit_the_clamp_lets_the_gradient_through() -> None:
    """torch.clamp's gradient is 1 at the limit and 0 beyond it."""
    gates = torch.tensor([7.0, 7.03125, -9.0, 3.0]).to(BF16)  # bf16 has 7.0 and 7.03125 beside each other
    ups = torch.tensor([-7.0, 7.0, -7.03125, 1.0]).to(BF16)
    x = torch.stack([gates, ups], 1)
    w1, w3 = torch.tensor([[[1.0, 0.0]]]).to(BF16), torch.tensor([[[0.0, 1.0]]]).to(BF16)
    w2 = torch.tensor([[[1.0], [0.0]]]).to(BF16)
    scores, ids = torch.ones(4, 1), torch.zeros(4, 1, dtype=torch.int64)
    layout = arrange(scores, ids, 1, 128)
    _, saved = experts_forward(x, *layout.operands, w1, w2, w3, act="clamped")
    dout = torch.tensor([[1.0, 0.0]]).expand(4, 2).to(BF16).contiguous()
    dx = experts_backward(dout, x, *grouped(layout, 1), saved, w1, w2, w3, act="clamped")[0]
    leaf = x.double().requires_grad_()
    out = reference.routed_experts(leaf, scores.double(), ids, w1.double(), w2.double(), w3.double(), act="clamped")
    (expected,) = torch.autograd.grad(out, leaf, dout.double())
    assert torch.equal(dx == 0, expected == 0)
    assert torch.allclose(dx.double(), expected, rtol=2**-6)


def test_the_reference_is_right_by_differences() -> None:
    x, scores, ids, w1, w2, w3, b1, b2, b3, _ = tensors(Case(5, 4, 3, 2, 2))
    inputs = [t.double().requires_grad_() for t in (x, scores, w1, w2, w3, b1, b2, b3)]
    for act in ("silu", "clamped"):
        assert torch.autograd.gradcheck(
            lambda x, s, *rest, act=act: reference.routed_experts(x, s, ids, *rest, act=act), inputs
        )
