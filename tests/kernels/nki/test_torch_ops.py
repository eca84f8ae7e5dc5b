"""The operators: torch's own checks of an operator, whole graphs, gradients, and refusals with a fix."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.nki.cases import Case, tensors, woven
from trnt.errors import TrntError
from trnt.kernels import reference
from trnt.kernels.nki import torch_ops as ops

CASE = Case(T=20, D=16, F=12, E=4, K=2)
TAIL = ("silu", 7.0, 128)


def inputs(bias: bool) -> list[Any]:
    x, scores, ids, w1, w2, w3, b1, b2, b3, _ = tensors(CASE)
    leaves = [x, scores, w1, w2, w3, *((b1, b2, b3) if bias else ())]
    for leaf in leaves:
        leaf.requires_grad_()
    return [x, scores, ids, w1, w2, w3, *((b1, b2, b3) if bias else (None,) * 3), *TAIL]


@pytest.mark.parametrize("bias", [False, True])
def test_experts_pass_torch_s_operator_checks(bias: bool) -> None:
    torch.library.opcheck(ops.experts_forward, tuple(inputs(bias)))


def test_the_backward_passes_torch_s_operator_checks() -> None:
    given = [t.detach() if isinstance(t, torch.Tensor) else t for t in inputs(True)]
    out, saved = ops.experts_forward(*given)
    torch.library.opcheck(ops.experts_backward, (torch.randn_like(out), *given[:3], saved, *given[3:]))


ROUTES = {
    "softmax": ("softmax", True, 1.0, 0, 0),
    "softmax, as it is": ("softmax", False, 1.5, 0, 0),
    "sigmoid": ("sigmoid", True, 2.5, 0, 0),
    "groups": ("sigmoid", True, 2.5, 4, 2),
    "chosen": ("softmax_topk", True, 1.0, 0, 0),
}


@pytest.mark.parametrize("name", ROUTES)
def test_route_passes_them_and_its_gradient_is_the_reference_s(name: str) -> None:
    score, normalise, scale, groups, limited = ROUTES[name]
    logits = torch.randn(9, 16, generator=torch.Generator().manual_seed(4), requires_grad=True)
    torch.library.opcheck(ops.route, (logits, None, 3, *ROUTES[name]))
    affinity, ids = ops.route(logits, None, 3, *ROUTES[name])
    weights = torch.randn(9, 3, generator=torch.Generator().manual_seed(5))
    (got,) = torch.autograd.grad(affinity, logits, weights)
    options = {"score": score, "normalise": normalise, "scale": scale, "groups": groups, "limited": limited}
    twin = logits.detach().double().requires_grad_()
    expected, chosen = reference.route(twin, 3, **options)  # type: ignore[arg-type]
    assert torch.equal(ids, chosen)
    (right,) = torch.autograd.grad(expected, twin, weights.double())
    assert torch.allclose(got.double(), right, rtol=1e-4, atol=1e-6)


def test_gradients_of_everything_and_none_for_the_choice() -> None:
    given = inputs(True)
    leaves = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]
    out = ops.experts_forward(*given)[0]
    grads = torch.autograd.grad(out.square().sum(), leaves)
    twins = [t.detach().double().requires_grad_() for t in leaves]
    expected = reference.routed_experts(twins[0], twins[1], given[2], *twins[2:])
    for got, right in zip(grads, torch.autograd.grad(expected.square().sum(), twins), strict=True):
        assert torch.allclose(got.double(), right, rtol=1e-4, atol=1e-5 * float(right.abs().max()))


def test_interleaved_weights_need_no_third() -> None:
    given = inputs(True)
    apart = ops.experts_forward(*given)[0]
    both = woven(given[3], given[5]).detach().requires_grad_()
    bias = woven(given[6][..., None], given[8][..., None])[..., 0]
    out = ops.experts_forward(*given[:3], both, given[4], None, bias, given[7], None, *TAIL)[0]
    assert torch.equal(out, apart)
    (grad,) = torch.autograd.grad(out.sum(), both)
    (right,) = torch.autograd.grad(apart.sum(), given[3])
    assert torch.equal(grad[:, 0::2], right)


def test_a_compiled_graph_is_whole_and_equal() -> None:
    given = inputs(False)
    logits = torch.randn(20, 4, requires_grad=True)

    def model(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        scores, ids = ops.route(logits, None, 2, "softmax", True, 1.0, 0, 0)
        return ops.experts_forward(x, scores, ids, *given[3:])[0]

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    leaves = (given[0], logits, given[3])
    eager, whole = model(given[0], logits), compiled(given[0], logits)
    assert torch.equal(eager, whole)
    for a, b in zip(torch.autograd.grad(eager.sum(), leaves), torch.autograd.grad(whole.sum(), leaves), strict=True):
        assert torch.equal(a, b)


def test_mixed_dtypes_and_sizes_that_do_not_fit_end_in_one_line() -> None:
    given = inputs(False)
    given[0] = given[0].detach().bfloat16()
    with pytest.raises(TrntError, match="bfloat16, float32") as caught:
        ops.experts_forward(*given)
    assert "--precision" in caught.value.fix
    with pytest.raises(TrntError, match="128, 256 or 512"):
        ops.experts_forward(*inputs(False)[:-1], 64)


def test_on_a_device_logical_cores_of_two_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(torch.Tensor):
        device = torch.device("meta")

    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
    monkeypatch.setattr(Elsewhere, "device", type("Device", (), {"type": "neuron"})())
    with pytest.raises(TrntError, match="one physical core") as caught:
        ops.launch(None, torch.zeros(1).as_subclass(Elsewhere))
    assert "NEURON_LOGICAL_NC_CONFIG=1" in caught.value.fix
