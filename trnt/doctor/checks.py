"""The table of checks. A probe looks, and returns a Finding; it never changes the machine and never imports torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trnt import console, device

Status = Literal["pass", "warn", "fail", "skip"]
TIMEOUT_S = 60.0
MEMORY_WANTED = 8 << 30
DISK_WANTED = 10 << 30


@dataclass(frozen=True)
class Finding:
    """What a probe saw; `fix` is a line a person can paste, empty when nothing is wrong."""

    status: Status
    detail: str
    fix: str = ""


@dataclass
class Machine:
    """What probes ask: replaced in tests. `torch` is what the probe process printed, or why it did not."""

    require: str | None = None
    dev: Path = Path("/dev")
    python: str = sys.executable
    _torch: dict[str, Any] | str | None = field(default=None, repr=False)

    def torch(self) -> dict[str, Any] | str:
        """The probe process's answer, asked once; a text when it crashed, hung or printed something else."""
        if self._torch is None:
            self._torch = ask_torch(self.python)
        return self._torch


def ask_torch(python: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | str:
    """Run the torch probe in a process of its own. A text tells how it failed."""
    try:
        done = subprocess.run(
            [python, "-m", "trnt.doctor.probe"], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout_s:.0f} s"
    except OSError as error:
        return f"cannot start {python}: {error.strerror}"
    if done.returncode < 0:
        return f"died with {signal.Signals(-done.returncode).name}"
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        lines = done.stderr.strip().splitlines()
        return lines[-1] if lines else "printed nothing"
    return answer if isinstance(answer, dict) else "printed something else"


def version(package: str) -> str | None:
    """The installed version of a package, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(text: str) -> tuple[int, ...]:
    """'2.13.0+cpu' -> (2, 13, 0)."""
    parts = []
    for part in text.partition("+")[0].split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)


def check_python(machine: Machine) -> Finding:
    found = platform.python_version()
    if sys.version_info < (3, 11):  # noqa: UP036  (the doctor tells what pip would only refuse)
        return Finding("fail", f"{found} is older than 3.11", "install Python 3.11 or newer")
    return Finding("pass", f"{found} ({platform.python_implementation()})")


def check_system(machine: Machine) -> Finding:
    if platform.system() != "Linux":
        return Finding("warn", platform.platform(), "use Linux: Trainium and the tests know no other system")
    return Finding("pass", f"{platform.platform()}, {os.cpu_count()} cores")


def check_memory(machine: Machine) -> Finding:
    free, limit = device.memory_free_bytes(), device.memory_limit_bytes()
    detail = f"{console.human_bytes(free)} free of {console.human_bytes(limit)}"
    if free < MEMORY_WANTED:
        return Finding("warn", detail, "close other programs, or cut models with --layers and --experts")
    return Finding("pass", detail)


def check_disk(machine: Machine) -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    detail = f"{console.human_bytes(free)} free here"
    if free < DISK_WANTED:
        return Finding("warn", detail, "free some space, or write runs elsewhere with --out or --runs-dir")
    return Finding("pass", detail)


def package_check(
    name: str, least: tuple[int, ...], below: tuple[int, ...], install: str
) -> Callable[[Machine], Finding]:
    """A check that a package is installed in a range of versions."""

    def check(machine: Machine) -> Finding:
        found = version(name)
        fix = f"pip install '{install}'"
        if found is None:
            return Finding("fail", "not installed", fix)
        if not least <= numbers(found) < below:
            return Finding("fail", f"{found} is not in the range trnt works with", fix)
        return Finding("pass", found)

    return check


def check_compiler(machine: Machine) -> Finding:
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    if found is None:
        return Finding("warn", "no C++ compiler: --compile inductor cannot work", "apt-get install g++")
    return Finding("pass", Path(found).name)


def check_torch(machine: Machine) -> Finding:
    answer = machine.torch()
    if isinstance(answer, str):
        return Finding("fail", f"import torch: {answer}", "pip install --force-reinstall 'torch>=2.13,<2.15'")
    return Finding("pass", f"{answer['torch']}, imported in {answer['import_s']:.1f} s, {answer['threads']} threads")


def check_rate(machine: Machine) -> Finding:
    answer = machine.torch()
    if isinstance(answer, str):
        return Finding("skip", "torch does not answer")
    return Finding("pass", f"{answer['cpu_flops'] / 1e9:,.0f} GFLOP/s in fp32 on the CPU")


def check_device(machine: Machine) -> Finding:
    """The device that `--device auto` would take, and the one that is required."""
    answer = machine.torch()
    nodes = sorted(path.name for path in machine.dev.glob("neuron[0-9]*")) if machine.dev.is_dir() else []
    there = answer["devices"] if isinstance(answer, dict) else {}
    if machine.require and not there.get(machine.require):
        fixes = {
            "neuron": "run on a Trn instance with the Neuron driver and torch-neuronx installed",
            "cuda": "run on a machine with an NVIDIA GPU, its driver and a CUDA build of torch",
            "cpu": "pip install --force-reinstall 'torch>=2.13,<2.15'",
        }
        return Finding("fail", f"torch has no {machine.require} device here", fixes[machine.require])
    if there.get("neuron"):
        return Finding("pass", f"Trainium: {len(nodes)} device files, torch computes on it")
    if nodes:
        return Finding(
            "warn", f"{len(nodes)} Neuron device files, but torch does not know the device", "pip install torch-neuronx"
        )
    if there.get("cuda"):
        return Finding("pass", "CUDA; no Trainium here")
    if not isinstance(answer, dict):
        return Finding("skip", "torch does not answer")
    return Finding("pass", "no Trainium here: CPU runs are ready")


def check_sample(machine: Machine) -> Finding:
    from trnt.data.sources import SAMPLE_TEXT, SAMPLE_TOKENIZER

    if not any(SAMPLE_TEXT.glob("*.txt")) or not (SAMPLE_TOKENIZER / "tokenizer.json").is_file():
        return Finding("fail", "the bundled text or tokenizer is missing", "pip install --force-reinstall trnt")
    return Finding("pass", "the bundled text and tokenizer are there")


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    id: str
    group: str
    title: str
    probe: Callable[[Machine], Finding]


CHECKS: tuple[Check, ...] = (
    Check("system.os", "system", "Operating system", check_system),
    Check("system.python", "system", "Python", check_python),
    Check("system.memory", "system", "Memory", check_memory),
    Check("system.disk", "system", "Disk", check_disk),
    Check("packages.torch", "packages", "torch", package_check("torch", (2, 13), (2, 15), "torch>=2.13,<2.15")),
    Check(
        "packages.torchtitan",
        "packages",
        "torchtitan",
        package_check("torchtitan", (0, 3), (0, 3, 1), "torchtitan==0.3.0"),
    ),
    Check(
        "packages.transformers",
        "packages",
        "transformers",
        package_check("transformers", (5, 16), (6,), "transformers>=5.16,<6"),
    ),
    Check("packages.triton", "packages", "triton", package_check("triton", (3,), (99,), "triton>=3")),
    Check("packages.compiler", "packages", "C++ compiler", check_compiler),
    Check("packages.sample", "packages", "trnt's own files", check_sample),
    Check("device.torch", "device", "torch works", check_torch),
    Check("device.kind", "device", "Device", check_device),
    Check("device.rate", "device", "Matmul rate", check_rate),
)
