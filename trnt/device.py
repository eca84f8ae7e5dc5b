"""What a device is (cpu, neuron, cuda), the numbers known about it, and the shims torchtitan 0.3.0 needs.

`ensure()` must run before anything of torchtitan is imported, because torchtitan copies its device type at import.
Every module of trnt that imports torchtitan calls it first. Importing this module imports no torch.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from trnt import host_memory
from trnt.errors import TrntError

KINDS = ("cpu", "neuron", "cuda")

# Large CPU tensors in huge pages: touching 2 GiB of fresh memory takes 0.28 s instead of 0.91 s here. torch reads it
# once, at its first allocation.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


@dataclass(frozen=True)
class Hardware:
    """One accelerator as torch sees it (for Trainium: one logical core at its default LNC setting)."""

    peak_flops_bf16: float
    """Dense bf16 matmul FLOP/s per device."""
    source: str


# The one table of hardware numbers. Keys are what `torch.neuron.get_device_properties().name` says.
HARDWARE: dict[str, Hardware] = {
    "trn1": Hardware(90e12, "Neuron docs, NeuronCore-v2 architecture: 90 bf16 TFLOPS a core, LNC 1"),
    "trn2": Hardware(158e12, "Neuron docs, NeuronCore-v3 architecture: 79 bf16 TFLOPS a core, LNC 2"),
    "trn3": Hardware(158e12, "Neuron docs, NeuronCore-v4 architecture: 79 bf16 TFLOPS a core, LNC 2"),
}

_chosen: str | None = None


class CpuModule:
    """The part of `torch.cuda`'s interface that torchtitan asks of a device module, for the CPU.

    `device_count` is 1, so that every local rank maps to index 0.
    """

    @staticmethod
    def set_device(device: Any) -> None:
        del device

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def get_device_name(device: Any = None) -> str:
        del device
        return "cpu"

    @staticmethod
    def get_device_properties(device: Any = None) -> Any:
        del device

        @dataclass(frozen=True)
        class Properties:
            name: str
            total_memory: int

        return Properties("cpu", host_memory.limit_bytes())

    @staticmethod
    def reset_peak_memory_stats(device: Any = None) -> None:
        del device

    @staticmethod
    def empty_cache() -> None: ...

    @staticmethod
    def synchronize(device: Any = None) -> None:
        del device

    @staticmethod
    def memory_stats(device: Any = None) -> dict[str, int]:
        del device
        peak = host_memory.peak_bytes()
        return {
            "active_bytes.all.peak": peak,
            "reserved_bytes.all.peak": peak,
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }


def available(kind: str) -> bool:
    """Whether torch can compute on this kind of device here."""
    import torch

    if kind == "cpu":
        return True
    module = getattr(torch, kind, None)
    if kind == "neuron" and module is None:
        try:
            import torch_neuronx  # noqa: F401  (registers torch.neuron)
        except ImportError:
            return False
        module = getattr(torch, kind, None)
    try:
        return module is not None and bool(module.is_available())
    except Exception:
        return False


def resolve(wanted: str) -> str:
    """`auto` -> neuron, else cuda, else cpu; any other kind must be there.

    Raises TrntError (exit 1) when the wanted device is not on this machine.
    """
    if wanted == "auto":
        return next(kind for kind in ("neuron", "cuda", "cpu") if available(kind))
    if not available(wanted):
        doctor = "trnt doctor" if wanted == "cpu" else f"trnt doctor --require {wanted}"
        raise TrntError(
            f"no {wanted} device on this machine",
            f"use --device cpu, or run '{doctor}' to see what is missing",
        )
    return wanted


def ensure(kind: str | None = None) -> str:
    """Apply the shims for a device kind, once per process, before torchtitan is imported. Returns the kind in force.

    Without an argument: the kind chosen before, else TRNT_DEVICE, else `auto`.
    Raises TrntError when another kind is already in force.
    """
    global _chosen
    if _chosen is not None:
        if kind not in (None, "auto", _chosen):
            raise TrntError(
                f"this process already computes on {_chosen}, not {kind}",
                "start a new process for another device",
            )
        return _chosen
    _chosen = resolve(kind or os.environ.get("TRNT_DEVICE") or "auto")
    _install_shims(_chosen)
    return _chosen


DECIDED_BY_TRNT = (
    "torch.distributed is already initialized",
    "ENV[TORCH_NCCL_ASYNC_ERROR_HANDLING]",
    "initial_load_model_only=True has no effect",
    "model.safetensors.index.json not found",
    "Error running",
)


def wanted_log(record: logging.LogRecord) -> bool:
    """Whether a line of torchtitan's is worth a user's attention."""
    return record.levelno >= logging.WARNING and not record.getMessage().startswith(DECIDED_BY_TRNT)


def _install_shims(kind: str) -> None:
    """What torchtitan 0.3.0 needs on torch 2.13 and on devices other than CUDA; each asked by feature, not version."""
    import warnings

    import torch
    import torch.distributed as dist

    # The router asks for autocast to float32, which the CPU answers with a warning and ignores.
    warnings.filterwarnings("ignore", message="In CPU autocast")
    # Its learning-rate scheduler recomputes the rate on load, in the way torch advises against for others.
    warnings.filterwarnings("ignore", message="To get the last learning rate")
    # A checkpoint is read without a process group on purpose.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
    # Random numbers of sharded tensors are for CUDA meshes; on CPU every process draws from its own seed.
    warnings.filterwarnings("ignore", message="DTensor (random operators|manual_seed)")
    # torchtitan logs to the root logger: its information, and its warnings about what trnt decides itself, stay out.
    logging.getLogger().addFilter(wanted_log)

    if not hasattr(dist, "set_timeout"):
        from torch.distributed.distributed_c10d import _set_pg_timeout

        def set_timeout(timeout: Any, group: Any = None) -> None:
            _set_pg_timeout(timeout, group)

        dist.set_timeout = set_timeout

    import torchtitan.tools.utils as titan

    titan.device_type = kind
    titan.device_module = CpuModule if kind == "cpu" else getattr(torch, kind)
    if kind == "cpu":
        titan.get_peak_flops = lambda device_name: cpu_peak_flops()


_cpu_peak: float | None = None


def matmul_flops(size: int = 1024, repeats: int = 5) -> float:
    """FLOP/s of the best of `repeats` fp32 products of two (size, size) matrices, after one to warm up."""
    import time

    import torch

    a, b = torch.ones(size, size), torch.ones(size, size)
    out = torch.mm(a, b)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def cpu_peak_flops() -> float:
    """fp32 matmul FLOP/s of this CPU with torch's present threads, measured once per process (about 0.2 s)."""
    global _cpu_peak
    if _cpu_peak is None:
        _cpu_peak = matmul_flops()
    return _cpu_peak


class MatmulRate:
    """The matmul rate of this CPU while a run goes on: a shared machine's wanders by a factor of two within an hour.

    `now()` takes a sample between steps once `EVERY` seconds have passed, which costs 1 to 2 % of the time, and gives
    the median of the last nine.
    """

    EVERY = 5.0
    LONG = 30.0  # seconds between two samples from which on a product eight times as large is affordable

    def __init__(self) -> None:
        self.samples = [cpu_peak_flops()]
        self._last = float("-inf")

    def now(self) -> float:
        """FLOP/s."""
        import statistics
        import time

        elapsed = time.perf_counter() - self._last
        if elapsed >= self.EVERY:
            size = 2048 if self.LONG <= elapsed < float("inf") else 1024
            self.samples = [*self.samples[-8:], matmul_flops(size, repeats=2)]
            self._last = time.perf_counter()
        return statistics.median(self.samples)


def count() -> int:
    """Devices of the kind in use on this machine: logical NeuronCores, GPUs, or 1 for the CPU."""
    import torch

    kind = ensure()
    return 1 if kind == "cpu" else int(getattr(torch, kind).device_count())
