"""The part of the doctor that imports torch, run as `python -m trnt.doctor.probe`: prints one JSON object."""

from __future__ import annotations

import json
import time
from typing import Any


def look() -> dict[str, Any]:
    """What torch says of itself and of this machine's devices; the matmul rate is fp32 on the CPU, in FLOP/s."""
    begin = time.perf_counter()
    import torch

    seconds = time.perf_counter() - begin
    from trnt import device

    return {
        "torch": torch.__version__,
        "import_s": seconds,
        "threads": torch.get_num_threads(),
        "devices": {kind: device.available(kind) for kind in device.KINDS},
        "cpu_flops": device.cpu_peak_flops(),
    }


if __name__ == "__main__":
    print(json.dumps(look()))
