"""What torch says and does: its import, its devices, a product, a compiled one, a sum over two cores."""

from __future__ import annotations

from typing import Any

from trnt.doctor.facts import fix_for
from trnt.doctor.machine import Finding, Machine
from trnt.doctor.table import Check

REINSTALL = "pip install --force-reinstall 'torch>=2.13,<2.15'"
REPORT = "export NEURON_RT_LOG_LEVEL=INFO, run it again, and report it with 'trnt doctor --report FILE'"
FIRST_COMPILE_S = 120.0


def check_torch(machine: Machine) -> Finding:
    answer = machine.ask("look")
    if isinstance(answer, str):
        return Finding("fail", f"import torch: {answer}", fix_for(answer, REINSTALL))
    return Finding("pass", f"{answer['torch']}, imported in {answer['import_s']:.1f} s, {answer['threads']} threads")


def check_rate(machine: Machine) -> Finding:
    answer = machine.ask("look")
    assert not isinstance(answer, str)
    return Finding("pass", f"{answer['cpu_flops'] / 1e9:,.0f} GFLOP/s in fp32 on the CPU")


REQUIRED = {
    "neuron": "start a Trn2 or Trn3 instance, and follow the fix lines of 'trnt doctor' there",
    "cuda": "run on a machine with an NVIDIA GPU, its driver and a CUDA build of torch",
    "cpu": REINSTALL,
}


def check_kind(machine: Machine) -> Finding:
    """The device that `--device auto` would take, and the one that is required."""
    answer = machine.ask("look")
    there: dict[str, bool] = dict(answer["devices"]) if isinstance(answer, dict) else {}
    neuron = machine.ask("device") if machine.is_neuron else None
    if isinstance(neuron, dict):
        there["neuron"] = neuron["count"] > 0
    if machine.require and not there.get(machine.require):
        return Finding("fail", f"torch has no {machine.require} device here", REQUIRED[machine.require])
    if there.get("neuron"):
        assert isinstance(neuron, dict)
        return Finding("pass", f"Trainium: {neuron['count']} cores for torch, named {neuron['name']}")
    if machine.is_neuron:
        said = neuron if isinstance(neuron, str) else "torch counts no core"
        return Finding("fail", f"a Neuron machine, and torch has no such device: {said}", fix_for(str(said), REPORT))
    if there.get("cuda"):
        return Finding("pass", "CUDA; no Trainium here")
    if not isinstance(answer, dict):
        return Finding("skip", "torch does not answer")
    return Finding("pass", "no Trainium here: CPU runs are ready")


def program(task: str, what: str) -> Any:
    """A check that runs a program on the device: right, wrong, slow or dead."""

    def check(machine: Machine) -> Finding:
        answer = machine.ask(task)
        if isinstance(answer, str):
            return Finding("fail", f"{what}: {answer}", fix_for(answer, REPORT))
        if not answer["right"]:
            return Finding("fail", f"{what} is wrong by {answer['error']:.3g}", REPORT)
        detail = f"{what} is right, {answer['seconds']:.2f} s"
        if answer["seconds"] > FIRST_COMPILE_S:
            return Finding(
                "warn", f"{detail}: the first compilation is slow", "set TORCH_NEURONX_NEFF_CACHE_DIR to keep it"
            )
        return Finding("pass", detail)

    return check


CHECKS = (
    Check(
        "device.torch", "torch works", check_torch, "`import torch` in a process of its own, the device not loaded",
        "`import torch` dies, with a message or a signal", slow=True,
    ),
    Check(
        "device.kind", "Device", check_kind, "what `--device auto` takes, and what --require wants",
        "`torch has no neuron device`", needs=(), slow=True,
    ),
    Check("device.rate", "Matmul rate", check_rate, "fp32 products on the CPU", needs=("device.torch",), slow=True),
    Check(
        "device.matmul", "A product on the device", program("device", "a 256 x 256 product in fp32 and bf16"),
        "the same product on the device and on the CPU", needs=("device.kind", "tools.busy"), neuron=True, slow=True,
    ),
    Check(
        "device.compile", "torch.compile", program("compile", 'a function under torch.compile(backend="neuron")'),
        "a compiled function against the same on the CPU; the second call must not compile again",
        "`NCC_...` errors; look in TORCH_NEURONX_DEBUG_DIR", needs=("device.matmul",), neuron=True, slow=True,
    ),
    Check(
        "device.allreduce", "All-reduce", program("allreduce", "a sum over two cores"),
        "two processes on two cores, started with spawn", "`suspected hang in collectives operation`",
        needs=("device.matmul", "runtime.libnccom"), neuron=True, slow=True,
    ),
)  # fmt: skip
