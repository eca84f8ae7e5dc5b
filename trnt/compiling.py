"""torch.compile: where compiled code is kept for the next run, and how long compiling took."""

from __future__ import annotations

import os

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"


def keep() -> str:
    """Let inductor keep its code in the user's cache, unless its own variable says where. Returns the place.

    Before torch is imported: inductor sets the variable itself.
    """
    from trnt.data.tokens import cache_root

    return os.environ.setdefault(INDUCTOR, str(cache_root() / "inductor"))


def seconds() -> float:
    """Time that this process has spent compiling, forward and backward, as torch counts it."""
    from torch._dynamo.utils import get_compilation_metrics

    return sum(metric.duration_us or 0 for metric in get_compilation_metrics()) / 1e6
