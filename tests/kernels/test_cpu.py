"""The CPU kernels equal the plain-torch reference, forward and every gradient, in the tensors' own dtype."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

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


class Sizes(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned, in elements."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor):
                Sizes.largest = max(Sizes.largest, value.numel())
        return out


def qkv(length: int, heads: int, kv: int, width: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(length, h, width, generator=generator).to(dtype).requires_grad_() for h in (heads, kv, kv)]


def positions_of(edges: list[int]) -> torch.Tensor:
    return torch.cat([torch.arange(b - a) for a, b in itertools.pairwise(edges)])[None]


EDGES = {
    "one document": [0, 40],
    "documents of one token": list(range(12)),
    "prime lengths": [0, 7, 20, 37, 40],
    "equal lengths": [0, 8, 16, 24, 32],
    "equal runs": [0, 5, 10, 12, 14, 29],
}


@pytest.mark.parametrize("edges", EDGES.values(), ids=EDGES.keys())
@pytest.mark.parametrize(("heads", "kv"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_equals_the_reference(edges: list[int], heads: int, kv: int, dtype: torch.dtype) -> None:
    q, k, v = qkv(edges[-1], heads, kv, 16, dtype)
    cu = torch.tensor(edges, dtype=torch.int32)
    expected = reference.attention(q[None], k[None], v[None], positions_of(edges), 0.3)[0]
    got, _ = cpu.document_attention(q, k, v, cu, 0.3)
    do = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    wanted = torch.autograd.grad(expected, (q, k, v), do)
    found = torch.autograd.grad(got, (q, k, v), do)
    # every number here is a sum of terms of size 1, also where the sum is exactly zero (a document of one token)
    pairs = zip(("out", "dq", "dk", "dv"), (got, *found), (expected, *wanted), strict=True)
    assert [name for name, one, two in pairs if not close(one, two, floor=1.0)] == []


def test_a_changed_neighbour_leaves_a_document_bit_equal() -> None:
    q, k, v = qkv(40, 4, 2, 16)
    cu = torch.tensor([0, 13, 29, 40], dtype=torch.int32)
    before, _ = cpu.document_attention(q, k, v, cu, 0.25)
    with torch.no_grad():
        for x in (q, k, v):
            x[13:29] += 1
    after, _ = cpu.document_attention(q, k, v, cu, 0.25)
    assert torch.equal(before[:13], after[:13])
    assert torch.equal(before[29:], after[29:])
    assert not torch.equal(before[13:29], after[13:29])


def test_attention_never_makes_a_square_of_the_length() -> None:
    length = 1024
    q, k, v = qkv(length, 2, 1, 16)
    Sizes.largest = 0
    with Sizes():
        out, _ = cpu.document_attention(q, k, v, torch.tensor([0, 1000, length], dtype=torch.int32), 0.25)
        out.sum().backward()
    assert length * 2 * 16 <= Sizes.largest < length * length / 4


@pytest.mark.parametrize("edges", [[0, 5], [1, 10], [0, 7, 3, 10], []])
def test_boundaries_that_do_not_fit_are_refused(edges: list[int]) -> None:
    q, k, v = qkv(10, 2, 1, 8)
    with pytest.raises(ValueError, match="boundaries"):
        cpu.document_attention(q, k, v, torch.tensor(edges, dtype=torch.int32), 0.25)


def test_operators_keep_torch_s_rules() -> None:
    w1, w2, w3 = weights(3, 4, 5)
    x = torch.randn(6, 4, requires_grad=True)
    torch.library.opcheck(cpu.grouped_swiglu, (x, w1, w2, w3, torch.tensor([1, 0, 5])))
    q, k, v = qkv(10, 4, 2, 8)
    torch.library.opcheck(cpu.document_attention, (q, k, v, torch.tensor([0, 4, 10], dtype=torch.int32), 0.25))


def test_a_compiled_graph_takes_both_operators_whole() -> None:
    w1, w2, w3 = weights(3, 8, 5)
    q, k, v = qkv(6, 2, 1, 8)
    counts, cu = torch.tensor([1, 0, 5]), torch.tensor([0, 2, 6], dtype=torch.int32)

    def both(q, k, v, w1, w2, w3):  # type: ignore[no-untyped-def]
        out, _ = cpu.document_attention(q, k, v, cu, 0.25)
        y, _, _ = cpu.grouped_swiglu(out.sum(1), w1, w2, w3, counts)
        return y.square().sum()

    eager = torch.autograd.grad(both(q, k, v, w1, w2, w3), (q, w1, w2))
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(q, k, v, w1, w2, w3), (q, w1, w2))
    for one, two in zip(found, eager, strict=True):
        assert close(one, two)


def test_kernels_repeat_themselves_to_the_bit() -> None:
    q, k, v = qkv(512, 8, 2, 32)
    cu = torch.tensor([0, 300, 512], dtype=torch.int32)

    def run() -> list[torch.Tensor]:
        out, _ = cpu.document_attention(q, k, v, cu, 0.25)
        return [out, *torch.autograd.grad(out.square().sum(), (q, k, v))]

    first = run()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))
