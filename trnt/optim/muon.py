"""Muon for matrices and stacks of matrices (experts), in fp32 where bf16 is slow; torch's takes 2-D weights only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Newton-Schulz coefficients, steps and the size of the update as in torch.optim.Muon (Keller Jordan, 2024).
A, B, C = 3.4445, -4.775, 2.0315
STEPS = 5


class Muon(torch.optim.Optimizer):
    """Momentum whose update is brought near the closest orthogonal matrix (arXiv 2502.16982).

    lr: of AdamW's size, the update is scaled by 0.2 sqrt(max(rows, columns)) to AdamW's usual RMS. Raises ValueError
    for a weight with fewer than two dimensions.
    """

    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0.95, weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            if any(weight.dim() < 2 for weight in group["params"]):
                raise ValueError("Muon takes matrices only; give vectors to AdamW")

    def init_states(self) -> None:
        """Make every momentum that is not there yet, zero."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.requires_grad and weight not in self.state:
                    self.state[weight] = {"momentum_buffer": torch.zeros_like(weight)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update every weight that has a gradient, one matrix at a time."""
        assert closure is None
        self.init_states()
        for group in self.param_groups:
            lr, momentum = float(group["lr"]), group["momentum"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                buffer = self.state[weight]["momentum_buffer"]
                buffer.lerp_(weight.grad.to(buffer.dtype), 1 - momentum)
                weight.mul_(1 - lr * group["weight_decay"])
                size = 0.2 * max(weight.shape[-2:]) ** 0.5
                for part, held, grad in zip(*(matrices(x) for x in (weight, buffer, weight.grad)), strict=True):
                    nesterov = grad.to(held.dtype).lerp(held, momentum)
                    part.add_(orthogonal(nesterov), alpha=-lr * size)


def matrices(tensor: torch.Tensor) -> torch.Tensor:
    """(N, rows, columns) of any stack of matrices."""
    return tensor.view(-1, *tensor.shape[-2:])


def orthogonal(matrix_MN: torch.Tensor) -> torch.Tensor:
    """U V^T of the matrix's singular value decomposition, near enough, by five Newton-Schulz steps."""
    wide = matrix_MN.T if matrix_MN.shape[0] > matrix_MN.shape[1] else matrix_MN
    x = wide.float() if wide.device.type == "cpu" else wide.bfloat16()
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(STEPS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=B, alpha=C), x, beta=A)
    x = x.to(matrix_MN.dtype)
    return x.T if matrix_MN.shape[0] > matrix_MN.shape[1] else x
