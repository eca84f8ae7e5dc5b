"""The experts module and the router in torchtitan's own mixture-of-experts layer."""

from __future__ import annotations

import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from trnt.kernels.moe import Experts, Router, balance_loss
from trnt.kernels.swap import swap
from trnt.models import registry


def layer(moe_balance: str = "none"):  # type: ignore[no-untyped-def]
    """One mixture-of-experts layer of qwen3-tiny-moe, built as in training."""
    entry = registry.get("qwen3-tiny-moe").cut(1, 8)
    config = entry.family.titan_spec(entry.name, entry.size).model
    swap(config, moe_balance=moe_balance)
    model = config.build()
    torch.manual_seed(0)
    model.init_states(buffer_device=torch.device("cpu"))
    return model.layers["0"].moe


def test_the_layer_is_the_sum_over_each_token_s_experts() -> None:
    moe = layer()
    x = torch.randn(2, 9, 256, requires_grad=True)
    got = moe(x)
    flat = x.reshape(-1, 256)
    probabilities = (flat @ moe.router.gate.weight.T).softmax(-1)
    best = probabilities.topk(4)
    shares = best.values / best.values.sum(-1, keepdim=True)
    inner = moe.routed_experts.inner_experts
    rows = []
    for token, (ids, weights) in enumerate(zip(best.indices, shares, strict=True)):
        total = torch.zeros(256)
        for expert, weight in zip(ids.tolist(), weights, strict=True):
            h = torch.nn.functional.silu(inner.w1_EFD[expert] @ flat[token]) * (inner.w3_EFD[expert] @ flat[token])
            total = total + weight * (inner.w2_EDF[expert] @ h)
        rows.append(total)
    expected = torch.stack(rows).view_as(x)
    # fp32 sums in another order
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-7)
    parameters = [x, inner.w1_EFD, inner.w2_EDF, inner.w3_EFD, moe.router.gate.weight]
    dy = torch.randn_like(expected)
    for one, two in zip(
        torch.autograd.grad(got, parameters, dy), torch.autograd.grad(expected, parameters, dy), strict=True
    ):
        assert (one - two).abs().max() <= 1e-5 * two.abs().max()


def test_parameters_keep_torchtitan_s_names_and_shapes() -> None:
    inner = layer().routed_experts.inner_experts
    assert isinstance(inner, Experts)
    shapes = {name: tuple(p.shape) for name, p in inner.named_parameters()}
    assert shapes == {"w1_EFD": (8, 192, 256), "w2_EDF": (8, 256, 192), "w3_EFD": (8, 192, 256)}


def test_an_expert_without_tokens_has_a_gradient_of_zeros() -> None:
    moe = layer()
    with torch.no_grad():
        moe.router.gate.weight[3] = -100 * torch.ones(256)
    moe(torch.rand(1, 6, 256) + 0.5).sum().backward()
    grad = moe.routed_experts.inner_experts.w1_EFD.grad
    assert not grad[3].any()
    assert grad.any()


def test_the_balance_loss_is_transformers_own() -> None:
    logits = torch.randn(30, 8)
    scores = logits.softmax(-1)[None]
    ids = scores.topk(2).indices
    expected = load_balancing_loss_func((logits,), num_experts=8, top_k=2)
    assert torch.allclose(balance_loss(scores, ids), expected, rtol=1e-5)


def test_the_balance_loss_reaches_the_router_s_gradient_with_its_weight() -> None:
    moe = layer("aux")
    assert isinstance(moe.router, Router)
    x = torch.randn(1, 12, 256)
    grads = []
    for weight in (0.0, 1.0, 0.5):
        moe.router.aux_weight = weight
        moe.zero_grad()
        moe(x).sum().backward()
        grads.append(moe.router.gate.weight.grad.clone())
    _scores, ids, everything = moe.router(x)
    moe.zero_grad()
    balance_loss(everything, ids).mul(moe.router.aux_coeff).backward()
    assert torch.allclose(grads[1] - grads[0], moe.router.gate.weight.grad, rtol=1e-3, atol=1e-7)
    # differences of fp32 gradients of up to 0.3, whose last bit is worth 3e-8 on each of four sides
    assert torch.allclose(grads[1] - grads[0], 2 * (grads[2] - grads[0]), rtol=1e-2, atol=5e-7)
    assert moe.router.last_aux is not None
    assert 1 <= float(moe.router.last_aux) <= 8
