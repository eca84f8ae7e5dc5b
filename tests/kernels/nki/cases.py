"""Cases of routed experts, and what a kernel's result is held to: the reference in float64 from the same inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from trnt.kernels import reference
from trnt.kernels.nki.experts_backward import experts_backward
from trnt.kernels.nki.experts_forward import experts_forward
from trnt.kernels.nki.layout import arrange
from trnt.kernels.nki.torch_ops import for_backward

NAMES = ("out", "dx", "dscores", "dw1", "dw2", "dw3", "db1", "db2", "db3")
# Roundings to bf16 in a row between the inputs and the output: forward h, row, out; backward saved g and u, h, dg or
# du, the transposed copies, the row, dx. Each is at most 2^-9 of its value, and they are independent.
ROUNDINGS = {"out": 3}
ROUNDINGS_BACKWARD = 6


@dataclass(frozen=True)
class Case:
    """T tokens, D hidden size, F expert width, E experts, K choices of each token, B rows of a block."""

    T: int
    D: int
    F: int
    E: int
    K: int
    B: int = 128
    dtype: torch.dtype = torch.float32
    act: str = "silu"
    bias: bool = False
    interleaved: bool = False
    routing: str = "random"
    scale: float = 1.0
    """Of the inputs: 5 drives GPT-OSS's clamps."""
    affinity: float = 1.0
    seed: int = 0

    def but(self, **changes: Any) -> Case:
        return replace(self, **changes)


def choices(case: Case, generator: torch.Generator) -> torch.Tensor:
    """ids (T, K)."""
    logits = torch.randn(case.T, case.E, generator=generator)
    if case.routing == "one":  # every token chooses the last experts
        logits += 100 * torch.arange(case.E)
    if case.routing == "few":  # the upper half of the experts is never chosen
        logits[:, max(case.K, case.E // 2) :] -= 1000
    return logits.topk(case.K).indices


def tensors(case: Case) -> tuple[torch.Tensor, ...]:
    """x, scores, ids, w1, w2, w3, b1, b2, b3, dout; the weights such that values stay of order 1."""
    g = torch.Generator().manual_seed(case.seed)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=g) * scale).to(case.dtype)

    T, D, F, E = case.T, case.D, case.F, case.E
    ids = choices(case, g)
    scores = torch.rand(T, case.K, generator=g) * case.affinity
    w1, w3, w2 = normal(E, F, D, scale=D**-0.5), normal(E, F, D, scale=D**-0.5), normal(E, D, F, scale=F**-0.5)
    b1, b2, b3 = (normal(E, n, scale=0.3) for n in (F, D, F))
    return normal(T, D, scale=case.scale), scores, ids, w1, w2, w3, b1, b2, b3, normal(T, D)


def woven(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Rows of a and b in turns, as GPT-OSS keeps gate and up."""
    return torch.stack([a, b], 2).flatten(1, 2).contiguous()


def by_kernel(case: Case) -> dict[str, torch.Tensor]:
    """Everything that the two kernels compute."""
    x, scores, ids, w1, w2, w3, b1, b2, b3, dout = tensors(case)
    layout = arrange(scores, ids, case.E, case.B)
    weights = (woven(w1, w3), w2, None) if case.interleaved else (w1, w2, w3)
    biases: tuple[Any, ...] = (None, None, None)
    if case.bias:
        biases = (woven(b1, b3), b2, None) if case.interleaved else (b1, b2, b3)
    options = {"act": case.act, "interleaved": case.interleaved, "has_bias": case.bias}
    out, saved = experts_forward(x, *layout.operands, *weights, *biases, **options)
    dx, da, *rest = experts_backward(dout, x, *for_backward(layout, w2), saved, *weights, biases[1], **options)
    found = {"out": out, "dx": dx, "dscores": da.reshape(-1)[layout.position_TK.long()]}
    if case.interleaved:
        found |= {"dw1": rest[0][:, 0::2], "dw2": rest[1], "dw3": rest[0][:, 1::2]}
        if case.bias:
            found |= {"db1": rest[2][:, 0::2], "db2": rest[3], "db3": rest[2][:, 1::2]}
        return found
    return found | dict(zip(NAMES[3:], rest, strict=False))


def by_reference(case: Case) -> dict[str, torch.Tensor]:
    """The same in float64, from the same rounded inputs."""
    x, scores, ids, w1, w2, w3, b1, b2, b3, dout = tensors(case)
    leaves = [t.double().requires_grad_() for t in (x, scores, w1, w2, w3, *((b1, b2, b3) if case.bias else ()))]
    out = reference.routed_experts(leaves[0], leaves[1], ids, *leaves[2:], act=case.act)
    grads = torch.autograd.grad(out, leaves, dout.double(), allow_unused=True)
    filled = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, grads, strict=True)]
    return {"out": out.detach(), **dict(zip(NAMES[1:], filled, strict=False))}


def bound(case: Case, name: str) -> float:
    """The error allowed, as a share of the tensor's root mean square.

    fp32: a sum of n numbers errs by about sqrt(n) 2^-24, n the longest sum, and the functions between by a few units.
    bf16: sqrt(roundings) 2^-9.
    """
    if case.dtype == torch.float32:
        return (8 + math.sqrt(case.D + case.F + case.T)) * 2**-24
    return math.sqrt(ROUNDINGS.get(name, ROUNDINGS_BACKWARD)) * 2**-9


def errors(case: Case) -> dict[str, float]:
    """name -> root mean square of the error over that of the reference."""
    got, expected = by_kernel(case), by_reference(case)
    assert set(got) == set(expected)
    found = {}
    for name, value in expected.items():
        size = value.square().mean().sqrt()
        found[name] = ((got[name].double() - value).square().mean().sqrt() / size.clamp(min=1e-30)).item()
    return found


def hold(case: Case, room: float = 1) -> None:
    """Every result within its bound; `room` for results of few elements, where terms may cancel."""
    for name, error in errors(case).items():
        allowed = room * bound(case, name)
        assert error <= allowed, f"{name}: {error:.2e} of its size, allowed {allowed:.2e}"
