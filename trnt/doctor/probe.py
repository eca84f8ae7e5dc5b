"""The part of the doctor that imports torch, run as `python -m trnt.doctor.probe TASK`: prints one JSON object.

Device programs ask for the device type by TRNT_DOCTOR_DEVICE (default neuron), so that an emulated one can answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

DEVICE = os.environ.get("TRNT_DOCTOR_DEVICE", "neuron")
# Relative to the largest value: fp32 sums in another order (or tf32-like inputs), bf16's 8 bits in the result.
TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-2}


def look() -> dict[str, Any]:
    """What torch says of itself and of this machine's devices; the matmul rate is fp32 on the CPU, in FLOP/s."""
    begin = time.perf_counter()
    import torch

    seconds = time.perf_counter() - begin
    from trnt import device

    kinds = [kind for kind in device.KINDS if kind != "neuron"]  # that one has a task of its own
    return {
        "torch": torch.__version__,
        "import_s": seconds,
        "threads": torch.get_num_threads(),
        "devices": {kind: device.available(kind) for kind in kinds},
        "cpu_flops": device.cpu_peak_flops(),
    }


def _torch() -> Any:
    import torch

    if DEVICE == "neuron" and not hasattr(torch, "neuron"):
        import torch_neuronx  # noqa: F401
    return torch


def on_device() -> dict[str, Any]:
    """Cores, name, and a product in fp32 and bf16 against the CPU's."""
    torch = _torch()
    module = getattr(torch, DEVICE)
    count = module.device_count()
    begin = time.perf_counter()
    error, right = 0.0, True
    for name, tolerance in TOLERANCE.items():
        a, b = (torch.randn(256, 256, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
        dtype = getattr(torch, name)
        got = (a.to(DEVICE, dtype) @ b.to(DEVICE, dtype)).float().cpu()
        expected = a.to(dtype).float() @ b.to(dtype).float()
        off = float((got - expected).abs().max() / expected.abs().max())
        error, right = max(error, off), right and off <= tolerance
    name = module.get_device_name(0) if hasattr(module, "get_device_name") else DEVICE
    return {"count": count, "name": name, "right": right, "error": error, "seconds": time.perf_counter() - begin}


def compiled() -> dict[str, Any]:
    """A function compiled for the device against the CPU, twice."""
    torch = _torch()

    def function(x: Any, w: Any) -> Any:
        return torch.nn.functional.silu(x @ w) + 1

    x, w = (torch.randn(128, 128, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    backend = os.environ.get("TRNT_DOCTOR_BACKEND", "neuron")
    begin = time.perf_counter()
    fast = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)
    moved = x.to(DEVICE), w.to(DEVICE)
    first = fast(*moved).cpu()
    seconds = time.perf_counter() - begin
    second = fast(*moved).cpu()
    expected = function(x, w)
    error = float((first - expected).abs().max() / expected.abs().max())
    same = bool(torch.equal(first, second))
    return {"right": error <= TOLERANCE["float32"] and same, "error": error, "seconds": seconds}


def _worker(rank: int, port: int, queue: Any) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch = _torch()
    import torch.distributed as dist

    dist.init_process_group(os.environ.get("TRNT_DOCTOR_GROUP", "neuron"))  # before any use of the device
    value = torch.arange(1000.0).to(DEVICE) * (rank + 1)
    dist.all_reduce(value)
    queue.put(float((value.cpu() - 3 * torch.arange(1000.0)).abs().max()))
    dist.destroy_process_group()


def allreduce() -> dict[str, Any]:
    """A sum over two cores, in processes started with spawn, against arithmetic."""
    import multiprocessing
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=_worker, args=(rank, port, queue)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    codes = [worker.exitcode for worker in workers]
    if any(codes):
        raise RuntimeError(f"the workers ended with {codes}")
    error = max(queue.get() for _ in workers)
    return {"right": error == 0, "error": error, "seconds": time.perf_counter() - begin}


TASKS: dict[str, Callable[[], dict[str, Any]]] = {
    "look": look,
    "device": on_device,
    "compile": compiled,
    "allreduce": allreduce,
}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]]()))
