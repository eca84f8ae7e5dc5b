"""Muon updates are orthogonal, and a stack of matrices is updated as its matrices are."""

from __future__ import annotations

import pytest
import torch

from trnt.optim.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (16, 16)])
def test_an_update_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(matrix))
    # Keller Jordan's coefficients bring them between about 0.7 and 1.2, on purpose not exactly to 1
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_a_stack_is_its_matrices() -> None:
    start = torch.randn(3, 8, 12, generator=torch.Generator().manual_seed(1))
    stack = torch.nn.Parameter(start.clone())
    single = [torch.nn.Parameter(part.clone()) for part in start]
    grads = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(2))
    one, many = Muon([stack], lr=0.01), Muon(single, lr=0.01)
    for grad in grads:
        stack.grad = grad.clone()
        for weight, part in zip(single, grad, strict=True):
            weight.grad = part.clone()
        one.step()
        many.step()
    assert torch.equal(stack, torch.stack(list(single)))


def test_one_matrix_goes_where_torch_s_muon_goes() -> None:
    start = torch.randn(32, 48, generator=torch.Generator().manual_seed(1))
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    ours.grad = torch.randn(32, 48, generator=torch.Generator().manual_seed(2))
    theirs.grad = ours.grad.clone()
    Muon([ours], lr=0.02).step()
    torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw").step()
    # torch's runs its Newton-Schulz steps in bf16
    assert (ours - theirs).norm() < 0.02 * (theirs - start).norm()


def test_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="matrices only"):
        Muon([torch.nn.Parameter(torch.ones(3))])
