"""Activations against torch, and their slopes against central differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trnt.kernels.sim.ops import OPS

X = np.linspace(-6, 6, 241)
TWINS = {
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "gelu_apprx_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_apprx_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "softplus": F.softplus,
    "relu": F.relu,
    "erf": torch.erf,
    "tanh": torch.tanh,
    "exp": torch.exp,
}


@pytest.mark.parametrize("name", TWINS)
def test_an_activation_is_torch_s(name: str) -> None:
    expected = TWINS[name](torch.from_numpy(X)).numpy()
    # erf comes back in fp32.
    assert np.allclose(OPS[name].compute(X), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["silu", "gelu_apprx_sigmoid"])
def test_a_slope_is_the_difference_quotient(name: str) -> None:
    step = 1e-5
    slope = (OPS[name].compute(X + step) - OPS[name].compute(X - step)) / (2 * step)
    assert np.allclose(OPS[f"{name}_dx"].compute(X), slope, atol=1e-8)
