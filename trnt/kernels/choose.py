"""Which kernels compute the experts of a run, and why. No torch here."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from trnt import plugins
from trnt.errors import TrntError


@dataclass(frozen=True)
class Kernels:
    """name: torch, nki, nki-sim, or a plugin's. why: the line that the run prints."""

    name: str
    why: str


def importable(*names: str) -> bool:
    """Whether all these modules are installed; none is imported but the packages that a dotted name lies in."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in names)
    except (ImportError, ValueError):
        return False


def has_nki() -> bool:
    """Whether NKI and TorchNeuron are installed; PyPI's placeholder of NKI has no `isa`."""
    return importable("nki.isa", "torch_neuronx")


def choose(asked: str, kind: str, num_experts: int, top_k: int) -> Kernels:
    """The kernels of a run on a device of `kind`. Raises TrntError for some that cannot run there."""
    brought = plugins.installed("trnt.kernels").get(asked)
    if not num_experts:
        if asked in ("nki", "nki-sim") or brought is not None:
            raise TrntError(f"--kernels {asked} is for experts, and the model has none", "leave --kernels out")
        return Kernels("torch", "")
    if brought is not None:
        return Kernels(asked, f"kernels: {asked} for routing and experts, of the package {brought.package}")
    if top_k > 8 and asked in ("nki", "nki-sim"):
        raise TrntError(f"--kernels {asked} chooses at most 8 experts, not {top_k}", "use --kernels torch")
    if asked == "nki":
        if kind != "neuron":
            raise TrntError(
                f"--kernels nki needs a Neuron device, and this run computes on {kind}",
                "use --kernels nki-sim to interpret the same kernels on the CPU, or torch to compute fast",
            )
        if not has_nki():
            raise TrntError("--kernels nki needs the packages nki and torch-neuronx", "run 'trnt doctor'")
        return Kernels("nki", "kernels: nki for routing and experts, as asked (not run on hardware by trnt's authors)")
    if asked == "nki-sim":
        if kind != "cpu":
            raise TrntError(
                f"--kernels nki-sim interprets on the CPU, and this run computes on {kind}", "use --device cpu, or nki"
            )
        return Kernels("nki-sim", "kernels: NKI's own source for routing and experts, interpreted: to check, not fast")
    if asked == "auto" and kind == "neuron" and has_nki():
        return Kernels("nki", "kernels: nki for routing and experts, as NKI is installed (not run on hardware)")
    because = (
        "as asked" if asked == "torch" else "written for it" if kind == "cpu" else f"NKI is for Neuron, not {kind}"
    )
    if asked == "auto" and kind == "neuron":
        because = "the packages nki and torch-neuronx are not installed"
    return Kernels("torch", f"kernels: torch on {kind}, {because}")
