"""Running a kernel: `nki.jit`, `nki.simulate`, and the order check."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from trnt.kernels import hardware
from trnt.kernels.sim import numerics, subset
from trnt.kernels.sim.machine import RUNNING, Issued, Machine, Peak, Storage
from trnt.kernels.sim.refusal import refuse
from trnt.kernels.sim.tensor import NkiTensor, whole


@dataclass(frozen=True)
class Report:
    """What a run used: for tests, the cost model and `docs/kernels.md`."""

    peak: Peak
    issued: list[Issued]
    sizes: list[tuple[str, int]]
    """Buffer and bytes per partition of every tensor, by its number."""
    trips: list[int]
    """How many instructions came before each trip of a run-time loop, and before what follows the loop."""


class Kernel:
    """A kernel as `nki.jit` gives it: called with NumPy arrays or CPU tensors it is interpreted."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.report: Report | None = None
        """Of the last run."""

    def __getitem__(self, grid: Any) -> Kernel:
        if grid not in (1, (1,)):
            refuse("lnc", f"a launch on {grid} cores", self.__name__)
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.run(args, options)

    def run(self, args: tuple[Any, ...], options: dict[str, Any], *, reverse: bool = False) -> Any:
        """Interpret. Raises Refused where the hardware or its compiler would not take it."""
        subset.check(self.function)
        core = hardware.present()
        run = Machine(core, reverse=reverse)
        handed: dict[int, Any] = {}
        inside, torch_used = [], False
        for value in (*args, *options.values()):
            array = as_array(value)
            torch_used = torch_used or (array is not None and not isinstance(value, np.ndarray))
            inside.append(value if array is None else handed.setdefault(id(value), given(array)))
        RUNNING.append(run)
        try:
            named = dict(zip(options, inside[len(args) :], strict=True))
            result = self.function(*inside[: len(args)], **named)
            peak = run.peak()
        finally:
            RUNNING.pop()
        self.report = Report(peak, run.issued, run.sizes, run.trips)
        back = to_torch if torch_used else (lambda array: array)
        if isinstance(result, (tuple, list)):
            return tuple(back(out(value)) for value in result)
        return None if result is None else back(out(result))


def jit(fn: Any = None, **options: Any) -> Any:
    """`nki.jit`: it takes no options any more."""
    if options or fn is None:
        refuse("supported", f"nki.jit({', '.join(options)}): it takes no arguments since NKI 0.3", "nki.jit")
    return Kernel(fn)


def simulate(kernel: Any) -> Callable[..., Any]:
    """The kernel, run by the interpreter."""
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)


def order_independent(kernel: Kernel, *args: Any, rtol: float = 1e-5, **options: Any) -> Any:
    """The result, after a second run with every `affine_range` turned round gives the same.

    rtol: of the largest value; sums in another order differ in their last bits. Raises Refused ("order") otherwise.
    """
    first = kernel.run(args, options)
    second = kernel.run(args, options, reverse=True)
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (first, second)), strict=True):
        a, b = (np.asarray(as_array(x)).astype(np.float64) for x in (a, b))
        if np.abs(a - b).max(initial=0) > rtol * np.abs(a).max(initial=0):
            refuse("order", "another result with the iterations of affine_range turned round", kernel.__name__)
    return first


def as_array(value: Any) -> np.ndarray | None:
    """A NumPy array or CPU tensor as an array that shares its memory; None for anything else."""
    if isinstance(value, np.ndarray):
        return value
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    value = value.detach().contiguous()
    twins = {
        torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
        torch.float8_e5m2: (torch.int8, ml_dtypes.float8_e5m2),
        torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn),
    }
    if value.dtype in twins:
        carrier, dtype = twins[value.dtype]
        return value.view(carrier).numpy().view(dtype)
    return value.numpy()


def to_torch(array: np.ndarray) -> Any:
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def given(array: np.ndarray) -> NkiTensor:
    """A kernel's input: in HBM, written."""
    if array.dtype not in numerics.NAMES:
        refuse("dtype", f"an input of {array.dtype}: the device has no such type", "input")
    flat = np.ascontiguousarray(array).reshape(-1)
    name = numerics.NAMES[array.dtype]
    return whole(Storage(array.shape, name, "shared_hbm", "", "input", flat, None, 0))


def out(value: Any) -> np.ndarray:
    """What a kernel returns, as an array. Refused unless it is whole, written and in shared HBM."""
    if not isinstance(value, NkiTensor) or value.buffer != "shared_hbm":
        what = value.buffer if isinstance(value, NkiTensor) else type(value).__name__
        refuse("output", f"returns something in {what}", "return")
    state = value.storage.state
    # Rows that a kernel leaves alone on purpose come back as poison: only a tensor never written at all is refused.
    if state is not None and not state.any():
        refuse("unwritten", f"returns {value}, made at {value.storage.where}, never written", "return")
    return value.values()


@contextmanager
def stand_in() -> Iterator[None]:
    """`import nki` gives the interpreter inside: for kernels written by others."""
    package = sys.modules["trnt.kernels.sim"]
    typing_module = types.ModuleType("nki.typing")
    typing_module.tensor = NkiTensor  # type: ignore[attr-defined]
    names = {"nki": package, "nki.isa": package.isa, "nki.language": package.language, "nki.typing": typing_module}
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
