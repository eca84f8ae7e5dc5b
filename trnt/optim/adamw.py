"""AdamW whose moments are kept in bf16 or 8 bits, and whose gradients may be bf16; every sum is in fp32.

A pass over pieces that fit the cache: decode the moments, torch's own fused step, encode. Nothing of the size of a
weight is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from trnt.optim import states

PIECE = {"cpu": 1 << 19}  # elements at once: 3 scratch pieces and one of the weight fit the cache
PIECE_ELSEWHERE = 1 << 24


class ReducedAdamW(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101), equal to torch's for `moments="fp32"`.

    moments: how `exp_avg` and `exp_avg_sq` are kept, one of `states.STATES`; tensors below two dimensions or
    `states.SMALLEST` elements keep fp32. grad_scale: set before `step`; gradients are divided by it (clipping).
    """

    grad_scale: torch.Tensor | None = None

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        moments: str = "bf16",
    ) -> None:
        if moments not in states.STATES:
            raise ValueError(f"moments must be one of {states.STATES}, got {moments!r}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "moments": moments}
        super().__init__(params, defaults)

    def init_states(self) -> None:
        """Make every state that is not there yet: zero moments, step 0."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.requires_grad and weight not in self.state:
                    self.state[weight] = new_state(weight, group["moments"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update every weight that has a gradient."""
        assert closure is None
        self.init_states()
        place = 0
        for group in self.param_groups:
            for weight in group["params"]:
                place += 1
                if weight.grad is None:
                    continue
                state = self.state[weight]
                state["step"] += 1
                update(weight, state, group, self.grad_scale, place * 7919 + int(state["step"]) * 104729)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy into the states that are here; torch's own would turn every state into the weight's dtype."""
        self.init_states()
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for number, saved in state_dict["state"].items():
            mine = self.state[weights[int(number)]]
            for name, value in saved.items():
                if mine[name] is not value:
                    mine[name].copy_(value)
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({key: value for key, value in saved.items() if key not in ("params", "param_names")})


def new_state(weight: torch.Tensor, moments: str) -> dict[str, torch.Tensor]:
    """Zero moments of a weight, sharded as it is."""
    kind = states.kind_for(weight.shape, moments)
    state = {"step": torch.zeros((), dtype=torch.float32)}
    for name, code in (("exp_avg", torch.int8), ("exp_avg_sq", torch.uint8)):
        dtype = code if kind == "8bit" else states.DTYPES[kind]
        state[name] = torch.zeros_like(weight, dtype=dtype, memory_format=torch.contiguous_format)
        if kind == "8bit":
            first = weight.detach()[..., :: states.block_of(weight.shape)]
            state[f"{name}_scale"] = torch.zeros_like(first, dtype=torch.float32, memory_format=torch.contiguous_format)
    return state


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part, as one row; nothing is copied."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.view(-1)


@dataclass(frozen=True)
class Rows:
    """A gradient that is zero but for some rows of an embedding, in rising order."""

    ids_U: torch.Tensor
    values_UD: torch.Tensor

    def fill(self, s: slice, out: torch.Tensor) -> torch.Tensor:
        """The part `s` of the flat gradient, in `out`. A piece may begin and end inside a row."""
        width = self.values_UD.shape[1]
        out.zero_()
        first, last = s.start // width, -(-s.stop // width)
        low, high = torch.searchsorted(self.ids_U, torch.tensor([first, last])).tolist()
        for row, values in zip(self.ids_U[low:high].tolist(), self.values_UD[low:high], strict=True):
            begin, end = max(row * width, s.start), min((row + 1) * width, s.stop)
            out[begin - s.start : end - s.start] = values[begin - row * width : end - row * width]
        return out


def gradient_of(grad: torch.Tensor) -> torch.Tensor | Rows:
    """A gradient as one row, or as the rows of an embedding that it has."""
    if grad.is_sparse:
        whole = grad.coalesce()
        return Rows(whole.indices()[0], whole.values())
    return flat(grad)


def pieces(count: int, piece: int) -> Iterator[slice]:
    """Slices of at most `piece` elements."""
    for begin in range(0, count, piece):
        yield slice(begin, min(begin + piece, count))


def update(
    weight: torch.Tensor,
    state: dict[str, torch.Tensor],
    group: dict[str, Any],
    grad_scale: torch.Tensor | None,
    place: int,
) -> None:
    """One AdamW step of one weight. `place` chooses the noise of the 8-bit rounding."""
    assert weight.grad is not None
    p, grad = flat(weight.detach()), gradient_of(weight.grad)
    moments = [flat(state[name]) for name in ("exp_avg", "exp_avg_sq")]
    scales = [flat(state[key]) if (key := f"{name}_scale") in state else None for name in ("exp_avg", "exp_avg_sq")]
    block = states.block_of(weight.shape)
    piece = PIECE.get(p.device.type, PIECE_ELSEWHERE)
    if moments[0].dtype == p.dtype and isinstance(grad, torch.Tensor) and grad.dtype == p.dtype:
        adamw(p, grad, moments[0], moments[1], state["step"], group, grad_scale)
        return
    scratch = [torch.empty(min(piece, len(p)), dtype=torch.float32, device=p.device) for _ in range(4)]
    for number, s in enumerate(pieces(len(p), piece)):
        n = s.stop - s.start
        found = [None if scale is None else scale[s.start // block : s.stop // block] for scale in scales]
        m = states.decode(moments[0][s], found[0], scratch[0][:n])
        v = states.decode(moments[1][s], found[1], scratch[1][:n])
        part = p[s] if p.dtype == torch.float32 else scratch[3][:n].copy_(p[s])
        g = scratch[2][:n].copy_(grad[s]) if isinstance(grad, torch.Tensor) else grad.fill(s, scratch[2][:n])
        adamw(part, g, m, v, state["step"], group, grad_scale)
        if part.dtype != p.dtype:
            p[s].copy_(part)
        for offset, (codes, scale, value) in enumerate(zip(moments, found, (m, v), strict=True)):
            states.encode(value, codes[s], scale, place + 2 * number + offset)


def adamw(
    p: torch.Tensor,
    g: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    step: torch.Tensor,
    group: dict[str, Any],
    grad_scale: torch.Tensor | None,
) -> None:
    """torch's fused AdamW where the device has it, else the same in plain operations. All fp32, in place."""
    beta1, beta2 = group["betas"]
    options = {"lr": group["lr"], "beta1": beta1, "beta2": beta2, "eps": group["eps"]}
    if p.device.type in ("cpu", "cuda"):
        torch._fused_adamw_(
            [p], [g], [m], [v], [], [step],
            weight_decay=group["weight_decay"], amsgrad=False, maximize=False, grad_scale=grad_scale, **options,
        )  # fmt: skip
        return
    if grad_scale is not None:
        g.div_(grad_scale)
    p.mul_(1 - group["lr"] * group["weight_decay"])
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    count = float(step)
    size = group["lr"] / (1 - beta1**count)
    p.addcdiv_(m, v.sqrt().div_((1 - beta2**count) ** 0.5).add_(group["eps"]), value=-size)
