"""Many small products at once, one per thread, instead of each split over all threads.

A product of 32 x 256 and 256 x 768 takes less time than two threads need to agree on it. Here every thread has a share
of the experts to itself. Shares follow from the counts alone, so that sums come in the same order every time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def shares(counts: Sequence[int], number: int) -> list[range]:
    """The indices of `counts` in `number` consecutive ranges of about the same sum and length."""
    weights = [count + 1 for count in counts]
    total, begin, seen = sum(weights), 0, 0
    found: list[range] = []
    for index, weight in enumerate(weights):
        seen += weight
        if seen * number >= total * (len(found) + 1) or index == len(weights) - 1:
            found.append(range(begin, index + 1))
            begin = index + 1
    return found


def spread(parts: Sequence[range], work: Callable[[range], None]) -> None:
    """`work(part)` for every part, each in a thread of its own with one thread inside; raises what a part raises."""
    global _pool
    threads = torch.get_num_threads()
    if len(parts) < 2 or threads < 2 or not _lock.acquire(blocking=False):
        for part in parts:
            work(part)
        return
    try:
        if _pool is None:
            _pool = ThreadPoolExecutor(threads, thread_name_prefix="trnt-experts")
        torch.set_num_threads(1)  # MKL has one number for all threads of the process
        for done in [_pool.submit(_alone, work, part) for part in parts]:
            done.result()
    finally:
        torch.set_num_threads(threads)
        _lock.release()


def _alone(work: Callable[[range], None], part: range) -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        work(part)
