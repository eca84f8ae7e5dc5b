"""The memory of this machine and process: how much there is, is free, is used, and what glibc does with freed blocks.

Imports no torch.
"""

from __future__ import annotations

_MALLOPT = {  # glibc's malloc.h: mallopt's numbers
    "M_MMAP_THRESHOLD": (-3, 32 << 20),  # the most that glibc takes
    "M_TRIM_THRESHOLD": (-1, (1 << 31) - 1),
    "M_TOP_PAD": (-2, 256 << 20),
}


def limit_bytes() -> int:
    """Bytes of memory this process may use: the container's limit where one is set, else the machine's."""
    import psutil

    total = int(psutil.virtual_memory().total)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


def free_bytes() -> int:
    """Bytes that can still be allocated without swapping."""
    import psutil

    return min(int(psutil.virtual_memory().available), limit_bytes())


def used_bytes() -> int:
    """Resident bytes of this process now."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """The most resident bytes this process ever had (Linux: ru_maxrss is in KiB)."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def give_back() -> None:
    """Return what glibc's heap holds but nobody uses; freed activations of changing sizes leave a GiB of it behind."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_freed() -> None:
    """Let glibc keep freed blocks of up to 32 MiB for what comes next, instead of giving them back at once.

    Memory that comes from the system anew is filled with zeros page by page: benchmarks/train_cpu.py, 0.57 s to 0.48 s
    a step of a compiled dense model. Larger blocks go back still, so that heaps do not fill with holes.
    """
    import ctypes

    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:
        for setting, value in _MALLOPT.values():
            change(setting, value)
