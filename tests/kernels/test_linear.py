"""Owned linear layers and embeddings have the gradients that autograd gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trnt.kernels import grads, matmul
from trnt.kernels.linear import Embedding, Linear


def linear() -> Any:
    torch.manual_seed(0)
    return Linear(Linear.Config(in_features=24, out_features=40))


def embedding() -> Any:
    torch.manual_seed(0)
    return Embedding(Embedding.Config(num_embeddings=50, embedding_dim=8))


IDS = torch.tensor([[3, 3, 7], [49, 0, 3]])


@pytest.mark.parametrize("times", [1, 2])
def test_an_owned_linear_layer_has_autograd_s_gradients(times: int) -> None:
    plain, owned = linear(), linear()
    grads.own(owned.weight)
    x = torch.randn(2, 5, 24)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for _ in range(times):
        for layer, held in zip((plain, owned), inputs, strict=True):
            layer(held).square().sum().backward()
    assert torch.allclose(plain.weight.grad, owned.weight.grad, rtol=1e-5, atol=1e-5)  # sums in another order
    assert torch.allclose(inputs[0].grad, inputs[1].grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_an_owned_embedding_has_autograd_s_gradients(sparse: bool, times: int) -> None:
    plain, owned = embedding(), embedding()
    grads.own(owned.weight, sparse=sparse)
    for _ in range(times):
        for layer in (plain, owned):
            layer(IDS).square().sum().backward()
    got = owned.weight.grad.to_dense() if sparse else owned.weight.grad
    assert owned.weight.grad.is_sparse == sparse
    assert torch.allclose(plain.weight.grad, got, rtol=1e-6)


def test_a_tied_weight_gets_both_gradients() -> None:
    layer, table = linear(), embedding()
    layer.weight = torch.nn.Parameter(torch.randn(50, 8))
    table.weight = layer.weight
    layer(table(IDS)).square().sum().backward()
    expected = layer.weight.grad.clone()
    layer.weight.grad = None
    grads.own(layer.weight)
    layer(table(IDS)).square().sum().backward()
    assert torch.allclose(expected, layer.weight.grad, rtol=1e-5, atol=1e-5)


def test_the_norm_noted_on_the_way_is_the_gradient_s() -> None:
    layer = linear()
    grads.own(layer.weight)
    layer(torch.randn(5, 24)).sum().backward()
    noted = grads.norm_of(layer.weight)
    assert noted is not None
    assert torch.allclose(noted, layer.weight.grad.norm())
    layer(torch.randn(5, 24)).sum().backward()
    assert grads.norm_of(layer.weight) is None  # added to: the parts' norms say nothing any more


def test_nothing_is_written_without_grad_mode() -> None:
    layer, table = linear(), embedding()
    for module in (layer, table):
        grads.own(module.weight)
    with torch.no_grad():
        layer(torch.randn(5, 24))
        table(IDS)
    assert layer.weight.grad is None
    assert table.weight.grad is None


@pytest.mark.parametrize("layer", [linear(), embedding()])
def test_a_weight_is_looked_at_once(layer: Any) -> None:
    """SimpleFSDP makes it a property that gathers its parts at every look."""
    looks = []
    given = layer._parameters["weight"]
    kind = type(layer)
    layer.__class__ = type("Parted", (kind,), {"weight": property(lambda self: looks.append(1) or given)})
    layer(IDS if kind is Embedding else torch.zeros(2, 24))
    assert looks == [1]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("features", [24, 1024])
def test_a_compiled_layer_is_the_eager_one(features: int, bias: bool) -> None:
    """1,024 x 512 is large enough for oneDNN, 24 x 512 is not."""
    torch.manual_seed(0)
    layer = Linear(Linear.Config(in_features=features, out_features=512, bias=bias))
    x = torch.randn(2, 5, features)
    found = []
    for call in (layer, torch.compile(layer, fullgraph=True)):
        held = x.clone().requires_grad_()
        layer.zero_grad()
        y = call(held)
        y.square().sum().backward()
        found.append([y.detach(), held.grad, *(weight.grad for weight in layer.parameters())])
    assert (features == 1024) == matmul.fast(layer.weight)
    for eager, compiled in zip(*found, strict=True):
        assert torch.allclose(eager, compiled, rtol=1e-5, atol=1e-4)  # sums of 1,024 in another order


def test_onednn_s_product_is_an_operator_as_torch_wants_it() -> None:
    torch.library.opcheck(torch.ops.trnt.onednn_product.default, (torch.randn(3, 1024), torch.randn(512, 1024)))
