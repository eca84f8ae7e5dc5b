"""torch.compile: where compiled code is kept for the next run, and how long compiling took."""

from __future__ import annotations

import os
from collections.abc import Iterable

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"


def keep() -> str:
    """Let inductor keep its code in the user's cache, unless its own variable says where. Returns the place.

    Before torch is imported: inductor sets the variable itself.
    """
    from trnt.data.tokens import cache_root

    return os.environ.setdefault(INDUCTOR, str(cache_root() / "inductor"))


def seconds() -> float:
    """Time that this process has spent compiling, forward and backward, as torch counts it: nested work counts once."""
    from torch._dynamo.utils import get_compilation_metrics

    return covered((metric.start_time_us or 0, metric.duration_us or 0) for metric in get_compilation_metrics()) / 1e6


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """Length of the union of spans (start, length), which may overlap."""
    total, end = 0, 0
    for start, length in sorted(spans):
        total += max(0, start + length - max(start, end))
        end = max(end, start + length)
    return total
