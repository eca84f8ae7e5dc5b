"""Attention on CPU equals the plain-torch reference, forward and every gradient, in the tensors' own dtype."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tests.kernels.test_cpu import close
from trnt.kernels import cpu_attention, reference


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


KINDS = {"plain": (False, 0), "sinks": (True, 0), "window of 8": (False, 8), "sinks, window of 5": (True, 5)}
KINDS |= {"a window of one": (True, 1), "a window as long as anything": (True, 64)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edges", EDGES.values(), ids=EDGES.keys())
@pytest.mark.parametrize(("heads", "kv"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_equals_the_reference(kind: str, edges: list[int], heads: int, kv: int, dtype: torch.dtype) -> None:
    with_sinks, window = KINDS[kind]
    inputs = qkv(edges[-1], heads, kv, 16, dtype)
    sinks = torch.linspace(-2, 3, heads, dtype=dtype).requires_grad_() if with_sinks else None
    cu = torch.tensor(edges, dtype=torch.int32)
    rows = [x[None] for x in inputs]
    expected = reference.attention(*rows, positions_of(edges), 0.3, sinks_H=sinks, window=window)[0]
    got, _ = cpu_attention.document_attention(*inputs, cu, 0.3, sinks, window)
    do = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    leaves = [*inputs, *([sinks] if with_sinks else [])]
    wanted = torch.autograd.grad(expected, leaves, do)
    found = torch.autograd.grad(got, leaves, do)
    # every number here is a sum of terms of size 1, also where the sum is exactly zero (a document of one token)
    pairs = zip(("out", "dq", "dk", "dv", "dsinks"), (got, *found), (expected, *wanted), strict=False)
    assert [name for name, one, two in pairs if not close(one, two, floor=1.0)] == []


@given(
    lengths=st.lists(st.integers(0, 23), min_size=1, max_size=5).filter(sum),
    window=st.integers(0, 12),
    with_sinks=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_documents_and_any_window(lengths: list[int], window: int, with_sinks: bool) -> None:
    edges = list(itertools.accumulate(lengths, initial=0))
    inputs = qkv(edges[-1], 2, 1, 8, torch.float64)
    sinks = torch.tensor([0.5, -1.0], dtype=torch.float64).requires_grad_() if with_sinks else None
    rows = [x[None] for x in inputs]
    expected = reference.attention(*rows, positions_of(edges), 0.3, sinks_H=sinks, window=window)[0]
    got, _ = cpu_attention.document_attention(*inputs, torch.tensor(edges, dtype=torch.int32), 0.3, sinks, window)
    assert close(got, expected, floor=1.0)
    wanted = torch.autograd.grad(expected.square().sum(), inputs)
    for one, two in zip(torch.autograd.grad(got.square().sum(), inputs), wanted, strict=True):
        assert close(one, two, floor=1.0)


def test_log_sum_exps_have_the_sink_in_them() -> None:
    q, k, v = qkv(6, 2, 2, 8)
    edges = torch.tensor([0, 6], dtype=torch.int32)
    sinks = torch.tensor([1.0, -3.0])
    _, bare = cpu_attention.document_attention(q, k, v, edges, 0.25)
    _, found = cpu_attention.document_attention(q, k, v, edges, 0.25, sinks)
    assert close(found, torch.logaddexp(bare, sinks[:, None]))


def test_a_sink_far_above_all_keys_leaves_nothing_and_no_nan() -> None:
    q, k, v = qkv(6, 2, 2, 8)
    sinks = torch.full((2,), 1e4, requires_grad=True)
    out, _ = cpu_attention.document_attention(q, k, v, torch.tensor([0, 6], dtype=torch.int32), 0.25, sinks)
    grads = torch.autograd.grad(out.sum(), (q, k, v, sinks))
    assert not out.any()
    assert all(torch.isfinite(grad).all() for grad in grads)


def test_a_changed_neighbour_leaves_a_document_bit_equal() -> None:
    q, k, v = qkv(40, 4, 2, 16)
    cu = torch.tensor([0, 13, 29, 40], dtype=torch.int32)
    before, _ = cpu_attention.document_attention(q, k, v, cu, 0.25)
    with torch.no_grad():
        for x in (q, k, v):
            x[13:29] += 1
    after, _ = cpu_attention.document_attention(q, k, v, cu, 0.25)
    assert torch.equal(before[:13], after[:13])
    assert torch.equal(before[29:], after[29:])
    assert not torch.equal(before[13:29], after[13:29])


@pytest.mark.parametrize(("sinks", "window"), [(None, 0), (torch.zeros(2), 64)])
def test_attention_never_makes_a_square_of_the_length(sinks: torch.Tensor | None, window: int) -> None:
    length = 1024
    q, k, v = qkv(length, 2, 1, 16)
    Sizes.largest = 0
    with Sizes():
        edges = torch.tensor([0, 1000, length], dtype=torch.int32)
        out, _ = cpu_attention.document_attention(q, k, v, edges, 0.25, sinks, window)
        out.sum().backward()
    assert length * 2 * 16 <= Sizes.largest < length * length / 4


@pytest.mark.parametrize("edges", [[0, 5], [1, 10], [0, 7, 3, 10], []])
def test_boundaries_that_do_not_fit_are_refused(edges: list[int]) -> None:
    q, k, v = qkv(10, 2, 1, 8)
    with pytest.raises(ValueError, match="boundaries"):
        cpu_attention.document_attention(q, k, v, torch.tensor(edges, dtype=torch.int32), 0.25)


@pytest.mark.parametrize("options", [(), (torch.tensor([0.5, -1.0, 0.0, 2.0]),), (None, 3)])
def test_the_operator_keeps_torch_s_rules(options: tuple[object, ...]) -> None:
    edges = torch.tensor([0, 4, 10], dtype=torch.int32)
    torch.library.opcheck(cpu_attention.document_attention, (*qkv(10, 4, 2, 8), edges, 0.25, *options))


def test_a_compiled_graph_takes_the_operator_whole() -> None:
    inputs, cu = qkv(6, 2, 1, 8), torch.tensor([0, 2, 6], dtype=torch.int32)
    sinks = torch.tensor([0.5, -1.0], requires_grad=True)

    def attend(q, k, v, sinks):  # type: ignore[no-untyped-def]
        return cpu_attention.document_attention(q.sin(), k, v, cu, 0.25, sinks, 2)[0].square().sum()

    eager = torch.autograd.grad(attend(*inputs, sinks), (*inputs, sinks))
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*inputs, sinks), (*inputs, sinks))
    for one, two in zip(found, eager, strict=True):
        assert close(one, two)


def test_attention_repeats_itself_to_the_bit() -> None:
    q, k, v = qkv(512, 8, 2, 32)
    cu = torch.tensor([0, 300, 512], dtype=torch.int32)

    def run() -> list[torch.Tensor]:
        out, _ = cpu_attention.document_attention(q, k, v, cu, 0.25)
        return [out, *torch.autograd.grad(out.square().sum(), (q, k, v))]

    first = run()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))
