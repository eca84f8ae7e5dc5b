"""The experts on CPU equal the plain-torch reference, forward and every gradient, in the tensors' own dtype."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trnt.kernels import cpu, reference

# fp32 sums of up to a few hundred terms in another order: a few units of 6e-8, relative to the largest value
RELATIVE = 1e-5


def close(got: torch.Tensor, expected: torch.Tensor, tolerance: float = RELATIVE, floor: float = 0.1) -> bool:
    """Relative to the largest number, or to `floor`, the size of the terms that were added up."""
    scale = expected.abs().max().clamp(min=floor)
    return bool(((got - expected).abs().max() / scale) <= tolerance)


def routed(tokens: int, top_k: int, experts: int, kind: str) -> torch.Tensor:
    """Tokens of each expert, (E,), for a kind of router."""
    generator = torch.Generator().manual_seed(tokens * 31 + top_k)
    scores = torch.rand(tokens, experts, generator=generator)
    if kind == "skewed":
        scores = scores + torch.linspace(0, 3, experts)
    elif kind == "one":
        scores[:, 2] += 10
    elif kind == "empty":
        scores[:, ::2] -= 10
    ids = scores.topk(top_k).indices
    return torch.bincount(ids.flatten(), minlength=experts)


def weights(experts: int, hidden: int, width: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(experts)
    shapes = [(experts, width, hidden), (experts, hidden, width), (experts, width, hidden)]
    return [torch.randn(shape, generator=generator).mul(0.2).to(dtype).requires_grad_() for shape in shapes]


def differences(counts: torch.Tensor, hidden: int, width: int) -> list[str]:
    """The names among y, dx, dw1, dw2, dw3 that differ from the reference."""
    x = torch.randn(int(counts.sum()), hidden, generator=torch.Generator().manual_seed(1), requires_grad=True)
    w1, w2, w3 = weights(len(counts), hidden, width)
    dy = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    expected = reference.experts(x, counts, w1, w2, w3)
    wanted = torch.autograd.grad(expected, (x, w1, w2, w3), dy, allow_unused=True)
    got, _, _ = cpu.grouped_swiglu(x, w1, w2, w3, counts)
    found = torch.autograd.grad(got, (x, w1, w2, w3), dy)
    pairs = zip(("y", "dx", "dw1", "dw2", "dw3"), (got, *found), (expected, *wanted), strict=True)
    return [name for name, one, two in pairs if not close(one, two)]


@pytest.mark.parametrize("kind", ["even", "skewed", "one", "empty"])
@pytest.mark.parametrize(("tokens", "top_k"), [(37, 1), (64, 2), (33, 8), (1, 2)])
def test_experts_equal_the_reference(kind: str, tokens: int, top_k: int) -> None:
    counts = routed(tokens, top_k, 16, kind)
    if kind == "empty" and top_k < 8:
        assert (counts == 0).any()
    if kind == "one":
        assert counts[2] == tokens
    assert differences(counts, 24, 20) == []


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(sum),
    hidden=st.integers(1, 17),
    width=st.integers(1, 17),
)
@settings(max_examples=40, deadline=None)
def test_experts_equal_the_reference_for_any_shape(counts: list[int], hidden: int, width: int) -> None:
    assert differences(torch.tensor(counts), hidden, width) == []


def test_experts_without_any_token_give_empty_rows_and_zero_gradients() -> None:
    w1, w2, w3 = weights(3, 4, 5)
    x = torch.empty(0, 4, requires_grad=True)
    y, _, _ = cpu.grouped_swiglu(x, w1, w2, w3, torch.zeros(3, dtype=torch.int64))
    grads = torch.autograd.grad(y.sum(), (w1, w2, w3))
    assert y.shape == (0, 4)
    assert all(g.shape == w.shape and not g.any() for g, w in zip(grads, (w1, w2, w3), strict=True))


def test_expert_i_stays_expert_i() -> None:
    experts, hidden = 5, 3
    number = torch.arange(1.0, experts + 1)
    w1 = torch.ones(experts, 2, hidden)
    w3 = torch.ones(experts, 2, hidden)
    w2 = number[:, None, None].expand(experts, hidden, 2).contiguous()
    counts = torch.tensor([2, 0, 1, 3, 1])
    y, _, _ = cpu.grouped_swiglu(torch.ones(7, hidden), w1, w2, w3, counts)
    ratio = y[:, 0] / y[0, 0]
    assert torch.allclose(ratio, torch.repeat_interleave(number, counts))


def test_counts_that_do_not_fit_are_refused() -> None:
    w1, w2, w3 = weights(3, 4, 5)
    with pytest.raises(ValueError, match="3 experts with 5 tokens"):
        cpu.grouped_swiglu(torch.ones(4, 4), w1, w2, w3, torch.tensor([2, 2, 1]))


def test_experts_compute_in_bf16_without_a_cast() -> None:
    counts = torch.tensor([2, 3])
    w1, w2, w3 = weights(2, 8, 8, torch.bfloat16)
    x = torch.randn(5, 8).bfloat16()
    y, g, u = cpu.grouped_swiglu(x, w1, w2, w3, counts)
    assert y.dtype == g.dtype == u.dtype == torch.bfloat16
    expected = reference.experts(x.float(), counts, w1.float(), w2.float(), w3.float())
    assert close(y.float(), expected, 3 * 2**-8)  # three roundings to 8 bits


def test_the_operators_keep_torch_s_rules() -> None:
    w1, w2, w3 = weights(3, 4, 5)
    x = torch.randn(6, 4, requires_grad=True)
    torch.library.opcheck(cpu.grouped_swiglu, (x, w1, w2, w3, torch.tensor([1, 0, 5])))
    torch.library.opcheck(cpu.grouped_linear, (x, w1, torch.tensor([1, 0, 5])))


@pytest.mark.parametrize("counts", [[2, 0, 4], [0, 0, 6], [1, 1, 1], [0, 0, 0]])
def test_grouped_linear_is_each_expert_s_product_and_padding_is_zero(counts: list[int]) -> None:
    w1, _, _ = weights(3, 4, 5)
    x = torch.randn(6, 4, requires_grad=True)
    got = cpu.grouped_linear(x, w1, torch.tensor(counts))
    rows = x[: sum(counts)].split(counts)
    expected = torch.cat([row @ w.T for row, w in zip(rows, w1, strict=True)] + [torch.zeros(6 - sum(counts), 5)])
    assert close(got, expected)
    if not sum(counts):
        assert not any(grad.any() for grad in torch.autograd.grad(got.sum(), (x, w1)))
        return
    wanted = torch.autograd.grad(expected.square().sum(), (x, w1))
    for one, two in zip(torch.autograd.grad(got.square().sum(), (x, w1)), wanted, strict=True):
        assert close(one, two)


def test_a_compiled_graph_takes_the_operator_whole() -> None:
    w1, w2, w3 = weights(3, 8, 5)
    x, counts = torch.randn(6, 8, requires_grad=True), torch.tensor([1, 0, 5])

    def experts(x, w1, w2, w3):  # type: ignore[no-untyped-def]
        return cpu.grouped_swiglu(x.square(), w1, w2, w3, counts)[0].square().sum()

    eager = torch.autograd.grad(experts(x, w1, w2, w3), (x, w1, w2))
    compiled = torch.compile(experts, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x, w1, w2, w3), (x, w1, w2))
    for one, two in zip(found, eager, strict=True):
        assert close(one, two)
