"""torchtitan's optimizer seam with more optimizers, gradients that stay, and a clip without a pass of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trnt import device

device.ensure()

from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.config import derive

from trnt.kernels import grads, norms
from trnt.optim.adamw import ReducedAdamW, flat, pieces
from trnt.optim.muon import Muon

FACTORIES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "ReducedAdamW": ReducedAdamW,
    "SGD": torch.optim.SGD,
    "Adafactor": torch.optim.Adafactor,
    "Muon": Muon,
}
PIECE = 1 << 20


class Optimizers(OptimizersContainer):
    """torchtitan's container, whose groups may match nothing; `keep_gradients`: whether gradient buffers stay."""

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        keep_gradients: bool = True
        """Keep owned gradient buffers (faster), or give them back after each step (less memory in the forward)."""

    def __init__(self, config: Config, *, model_parts: list[torch.nn.Module]) -> None:
        names = [name for part in model_parts for name, _ in part.named_parameters()]
        there = [group for group in config.param_groups if any(re.search(group.pattern, name) for name in names)]
        super().__init__(derive(config, type(config), param_groups=there), model_parts=model_parts)
        self.keep_gradients = config.keep_gradients

    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Callable[..., torch.optim.Optimizer]:
        return FACTORIES.get(name) or OptimizersContainer._resolve_optimizer_factory(name)

    def weights(self) -> list[torch.Tensor]:
        """Every weight that is trained."""
        return [weight for optimizer in self.optimizers for g in optimizer.param_groups for weight in g["params"]]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin a step."""
        del set_to_none
        grads.reset(self.weights(), keep=self.keep_gradients)

    def clip(self, max_norm: float) -> torch.Tensor:
        """The global 2-norm of all gradients, in fp32 (); the step then scales them so that it is at most `max_norm`.

        For one process. Optimizers that cannot scale on the way get scaled gradients.
        """
        grads.settle(self.weights())
        norm = global_norm([weight for weight in self.weights() if weight.grad is not None])
        divisor = torch.clamp((norm + 1e-6) / max_norm, min=1.0)
        for optimizer in self.optimizers:
            fused = isinstance(optimizer, torch.optim.AdamW) and optimizer.param_groups[0].get("fused")
            if fused or isinstance(optimizer, ReducedAdamW):
                optimizer.grad_scale = divisor if divisor > 1 else None
            elif divisor > 1:
                found = [w.grad for group in optimizer.param_groups for w in group["params"] if w.grad is not None]
                torch._foreach_div_(found, float(divisor))
        return norm

    def state_dict(self) -> dict[str, Any]:
        """torchtitan's flat state; our states are made without the zero-gradient step that it takes for others."""
        self._init_states()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._init_states()
        super().load_state_dict(state_dict)

    def _init_states(self) -> None:
        for optimizer in self.optimizers:
            if isinstance(optimizer, ReducedAdamW | Muon):
                optimizer.init_states()


def global_norm(weights: list[torch.Tensor]) -> torch.Tensor:
    """2-norm over all gradients, () fp32. bf16 goes through a small fp32 buffer: its own norm has 8 bits."""
    parts: list[torch.Tensor] = []
    scratch = torch.empty(PIECE, dtype=torch.float32)
    for weight in weights:
        grad = weight.grad
        assert grad is not None
        known = grads.norm_of(weight)
        row = grad.coalesce().values().view(-1) if grad.is_sparse else flat(grad)
        if known is not None:
            parts.append(known[None])
        elif row.dtype == torch.float32 or row.device.type != "cpu":
            parts.append(norms.of_rows(row))
        else:
            parts += [norms.of_rows(scratch[: s.stop - s.start].copy_(row[s])) for s in pieces(len(row), PIECE)]
    return norms.total(parts)
