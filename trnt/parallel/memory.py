"""Choosing what fits: how optimizer states, gradients and activations are kept, in a fixed order.

The order is by what a step costs, in the loss and in time: bf16 moments, bf16 gradients, gradients that are given back
between steps, 8-bit moments, and at last recomputing each layer's forward in its backward. The script
benchmarks/memory_choices.py measures the effect of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from trnt import console
from trnt.errors import TrntError

# Of the memory that is free at the start: the rest is for other programs, and for what the plan cannot see.
SHARE = 0.87


@dataclass(frozen=True)
class Choice:
    """How a run keeps its tensors."""

    states: str = "fp32"
    """Moments of AdamW: fp32, bf16 or 8bit."""
    gradients: str = "fp32"
    """Gradients of large weights in one CPU process: fp32 or bf16."""
    release: bool = False
    """Give the gradients' memory back between steps: it takes the place of activations, and is touched anew."""
    recompute: str = "none"
    """none, selective or full."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


LADDER = (
    Choice(),
    Choice("bf16"),
    Choice("bf16", "bf16"),
    Choice("bf16", "bf16", release=True),
    Choice("8bit", "bf16"),
    Choice("8bit", "bf16", release=True),
    Choice("8bit", "bf16", release=True, recompute="full"),
)
EFFECTS = {
    ("states", "bf16"): "moments in bf16 (8 bits of mantissa)",
    ("states", "8bit"): "moments in 8 bits, in blocks, rounded at random",
    ("gradients", "bf16"): "gradients in bf16",
    ("release", True): "their memory given back between steps (about a tenth more time)",
    ("recompute", "selective"): "most of each layer's forward twice",
    ("recompute", "full"): "each layer's forward twice (about a third more time)",
}


def ladder(fixed: dict[str, str | None]) -> list[Choice]:
    """The choices to try, with what the user chose by hand held fast."""
    held: dict[str, Any] = {name: value for name, value in fixed.items() if value is not None}
    found: list[Choice] = []
    for choice in LADDER:
        candidate = replace(choice, **held)
        if candidate not in found:
            found.append(candidate)
    return found


def choose(
    choices: list[Choice], needed: Callable[[Choice], int], free_bytes: int, policy: str
) -> tuple[Choice, str | None]:
    """(the first choice that fits, the line that says so; None when nothing had to be changed).

    needed: peak bytes of a choice. policy: auto, strict or off. Raises TrntError with the sizes when nothing fits, and
    under `strict` when the first choice does not.
    """
    budget = int(free_bytes * SHARE)
    first = choices[0]
    asked = needed(first)
    if policy == "off" or asked <= budget:
        return first, None
    sizes = f"{console.human_bytes(asked)} are needed, {console.human_bytes(budget)} may be used ({SHARE:.0%} of free)"
    if policy == "strict":
        fitting = next((choice for choice in choices if needed(choice) <= budget), None)
        fix = f"use --memory auto, which would choose {words(first, fitting)}" if fitting else SMALLER
        raise TrntError(f"this run does not fit: {sizes}", fix)
    for choice in choices[1:]:
        if needed(choice) <= budget:
            return choice, f"memory: {sizes}; chosen: {words(first, choice)}, {console.human_bytes(needed(choice))}"
    least = min(choices, key=needed)
    raise TrntError(
        f"this run does not fit: at least {console.human_bytes(needed(least))} are needed, "
        f"{console.human_bytes(budget)} may be used ({SHARE:.0%} of free)",
        SMALLER,
    )


SMALLER = "use fewer --layers or --experts, a smaller --batch-size or --seq-len, or --memory off to try all the same"


def words(before: Choice, after: Choice) -> str:
    """What `after` changes against `before`, for people."""
    old: dict[str, Any] = before.to_dict()
    return "; ".join(EFFECTS[name, value] for name, value in after.to_dict().items() if value != old[name])
