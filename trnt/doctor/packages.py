"""Python packages, from their metadata alone: nothing is imported."""

from __future__ import annotations

from collections.abc import Callable

from trnt.doctor.facts import INSTALL, LAST_XLA, NEWEST, PLACEHOLDERS, SDKS, numbers
from trnt.doctor.machine import Finding, Machine
from trnt.doctor.table import Check


def package_check(
    name: str, least: tuple[int, ...], below: tuple[int, ...], install: str
) -> Callable[[Machine], Finding]:
    """A check that a package is installed in a range of versions."""

    def check(machine: Machine) -> Finding:
        found = machine.version(name)
        fix = f"pip install '{install}'"
        if found is None:
            return Finding("fail", "not installed", fix)
        if not least <= numbers(found) < below:
            return Finding("fail", f"{found} is not in the range trnt works with", fix)
        return Finding("pass", found)

    return check


def family(machine: Machine) -> str:
    """torch's minor version, for the matching torch-neuronx."""
    return ".".join(map(str, numbers(machine.version("torch") or "2.14")[:2]))


def check_torch_build(machine: Machine) -> Finding:
    found = machine.version("torch")
    if found is None:
        return Finding("skip", "torch is not installed")
    if machine.is_neuron and "+cu" in found:
        return Finding(
            "warn",
            f"{found} is a CUDA build",
            "pip install --force-reinstall torch --index-url <torch's CPU wheel index>",
        )
    return Finding("pass", found.partition("+")[2] or "plain")


def check_torch_neuronx(machine: Machine) -> Finding:
    found, fix = machine.version("torch-neuronx"), INSTALL.format(family=family(machine))
    if found is None:
        if machine.version("libtorch-neuronx-lite"):
            return Finding("fail", "libtorch-neuronx-lite: an inference image, not TorchNeuron", fix)
        return Finding("fail", "torch-neuronx is not installed", fix)
    if numbers(found)[:2] == numbers(PLACEHOLDERS["torch-neuronx"]):
        return Finding(
            "fail", f"torch-neuronx {found} is PyPI's empty placeholder", f"pip uninstall -y torch-neuronx; {fix}"
        )
    requires = machine.packages["torch-neuronx"].requires or []
    if numbers(found)[:2] <= LAST_XLA or any(one.lower().replace("_", "-").startswith("torch-xla") for one in requires):
        return Finding(
            "fail",
            f"torch-neuronx {found} is the PyTorch/XLA package",
            f"pip uninstall -y torch-neuronx torch-xla; {fix}",
        )
    if numbers(found)[:2] != numbers(machine.version("torch") or "")[:2]:
        return Finding("fail", f"torch-neuronx {found} does not belong to torch {machine.version('torch')}", fix)
    return Finding("pass", found)


def neuron_package(name: str) -> Callable[[Machine], Finding]:
    """A check of a package that exists as a placeholder too."""

    def check(machine: Machine) -> Finding:
        found, fix = machine.version(name), INSTALL.format(family=family(machine))
        if found is None:
            return Finding("fail", f"{name} is not installed", fix)
        empty = numbers(PLACEHOLDERS[name])
        if numbers(found)[: len(empty)] == empty:
            return Finding("fail", f"{name} {found} is PyPI's empty placeholder", f"pip uninstall -y {name}; {fix}")
        return Finding("pass", found)

    return check


def check_sdk(machine: Machine) -> Finding:
    """Whether all parts are of one SDK release."""
    found = {"aws-neuronx-dkms": machine.text("/sys/module/neuron/version")}
    for name in SDKS[NEWEST]:
        if name not in found:
            system = name.startswith("aws-")
            found[name] = machine.system_package(name) if system else machine.version(name)
    releases: dict[str, list[str]] = {}
    for name, version in found.items():
        if version is None:
            continue
        release = next((sdk for sdk, row in SDKS.items() if version.startswith(row.get(name, "none"))), None)
        if release is None and numbers(version) > numbers(SDKS[NEWEST][name]):
            release = "newer"
        releases.setdefault(release or "another", []).append(f"{name} {version}")
    if not releases:
        return Finding("skip", "no version of any part is known")
    if len(releases) > 1:
        said = "; ".join(f"SDK {release}: {', '.join(parts)}" for release, parts in releases.items())
        return Finding("warn", said, f"update every part to SDK {NEWEST}")
    only = next(iter(releases))
    if only == "newer":
        return Finding("pass", f"newer than SDK {NEWEST}, the newest that trnt's table knows")
    return (
        Finding("pass", f"SDK {only}") if only in SDKS else Finding("warn", "no known SDK", f"update to SDK {NEWEST}")
    )


def check_loading(machine: Machine) -> Finding:
    """The entry point through which `import torch` finds the device."""
    package = machine.packages.get("torch-neuronx")
    if package is None:
        return Finding("skip", "torch-neuronx is not installed")
    if any(point.group == "torch.backends" for point in package.entry_points):
        return Finding("pass", "torch loads the Neuron device by itself")
    return Finding("warn", "torch-neuronx has no torch.backends entry point", INSTALL.format(family=family(machine)))


CHECKS = (
    Check(
        "packages.torch", "torch", package_check("torch", (2, 13), (2, 15), "torch>=2.13,<2.15"), "its version",
    ),
    Check(
        "packages.torchtitan", "torchtitan", package_check("torchtitan", (0, 3), (0, 3, 1), "torchtitan==0.3.0"),
        "the version of torchtitan; trnt is built on 0.3.0",
    ),
    Check(
        "packages.transformers", "transformers",
        package_check("transformers", (5, 16), (6,), "transformers>=5.16,<6"), "the version of transformers",
    ),
    Check(
        "packages.safetensors", "safetensors", package_check("safetensors", (0, 5), (1,), "safetensors>=0.5,<1"),
        "the version of safetensors",
    ),
    Check("packages.triton", "triton", package_check("triton", (3,), (99,), "triton>=3"), "torchtitan imports it"),
    Check("packages.torch_build", "torch's build", check_torch_build, "CPU or CUDA build", neuron=True),
    Check(
        "packages.torch_neuronx", "torch-neuronx", check_torch_neuronx,
        "version, family of torch, PyTorch/XLA or native, placeholder",
        "`No module named 'torch_neuronx'`, `Expected one of cpu, cuda, ... device type`", neuron=True,
    ),
    Check(
        "packages.nki", "nki", neuron_package("nki"), "version, placeholder",
        "`import torch` dies with `No module named 'nki'`", neuron=True,
    ),
    Check("packages.neuronx_cc", "neuronx-cc", neuron_package("neuronx-cc"), "version, placeholder", neuron=True),
    Check(
        "packages.loading", "Device loading", check_loading, "torch-neuronx's entry point `torch.backends`",
        "`cannot import name 'neuron' from 'torch'`", needs=("packages.torch_neuronx",), neuron=True,
    ),
    Check(
        "packages.sdk", "One SDK", check_sdk, "all versions against the releases that trnt's table knows",
        "`NEFF version mismatch`, `Unsupported hardware operator code`", neuron=True,
    ),
)  # fmt: skip
