"""What is there, used and free, and what glibc does with freed blocks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trnt import host_memory


def test_memory_figures_are_bytes_in_a_sane_order() -> None:
    assert 0 < host_memory.used_bytes() <= host_memory.peak_bytes() * 1.05
    assert 0 < host_memory.free_bytes() <= host_memory.limit_bytes()


def test_unused_heap_memory_goes_back() -> None:
    """Many small blocks with one in use above them stay in the heap until it is trimmed."""
    import torch

    blocks = [torch.ones(1 << 14) for _ in range(4000)]  # 250 MiB in blocks of 64 KiB
    kept = blocks[::100]
    del blocks
    before = host_memory.used_bytes()
    host_memory.give_back()
    assert host_memory.used_bytes() < before - (50 << 20)
    assert len(kept) == 40


@pytest.mark.parametrize("keep", [False, True])
def test_freed_memory_is_kept_when_asked(keep: bool) -> None:
    """20 blocks of 16 MiB, freed."""
    code = (
        "from trnt import device, host_memory; import torch\n"
        f"if {keep}: host_memory.keep_freed()\n"
        "before = host_memory.used_bytes()\n"
        "blocks = [torch.ones(1 << 22) for _ in range(20)]\n"
        "del blocks\n"
        "print((host_memory.used_bytes() - before) >> 20)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    left = int(done.stdout)  # MiB
    assert left > 300 if keep else left < 100
