"""What the doctor compares with: SDK releases, instances, device ids, environment variables. Data, with its sources.

Sources: the Neuron SDK's documents of release 2.33 (October 2026) and the repository aws-neuron/aws-neuron-sdk (2.32):
release notes, `setup/pytorch/manual.rst`, `about-neuron/arch/neuron-hardware/`, `neuron-runtime/nrt-troubleshoot.rst`,
the pages "TorchNeuron environment variables" and "Reference: Neuron Runtime environment variables". PCI ids are the
driver's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trnt.errors import unknown

# Release -> version of each part, by the name its package has.
SDKS: dict[str, dict[str, str]] = {
    "2.33": {
        "aws-neuronx-dkms": "2.31.7.0",
        "aws-neuronx-runtime-lib": "2.35.30.0",
        "aws-neuronx-collectives": "2.35.43.0",
        "aws-neuronx-tools": "2.33.38.0",
        "neuronx-cc": "2.28.7631.0",
        "nki": "0.7.0",
    },
    "2.32": {
        "aws-neuronx-dkms": "2.30.2.0",
        "aws-neuronx-runtime-lib": "2.34.10.0",
        "aws-neuronx-collectives": "2.34.10.0",
        "aws-neuronx-tools": "2.32.28.0",
        "neuronx-cc": "2.27.5334.0",
    },
}
NEWEST = "2.33"
OLDEST_DRIVER = SDKS["2.32"]["aws-neuronx-dkms"]

# Vendor 0x1d0f is Amazon; it alone also matches network and disk.
AMAZON = "0x1d0f"
PCI = {"0x7164": "trn1", "0x7264": "inf2", "0x7364": "trn2", "0x7564": "trn3", "0x7565": "trn3"}
SUPPORTED = ("trn2", "trn3")


@dataclass(frozen=True)
class Instance:
    """Chips, logical cores of a machine at LNC 2 and 1, and network cards for EFA.

    Cores at LNC 2 is 0 where there is no LNC 2; cards are 0 where the SDK's pages name none.
    """

    chips: int
    cores_lnc2: int
    cores_lnc1: int
    efa: int = 0


INSTANCES: dict[str, Instance] = {
    "trn1.2xlarge": Instance(1, 0, 2),
    "trn1.32xlarge": Instance(16, 0, 32, 8),
    "trn1n.32xlarge": Instance(16, 0, 32, 16),
    "trn2.3xlarge": Instance(1, 4, 8),
    "trn2.48xlarge": Instance(16, 64, 128, 16),
    "trn2n.48xlarge": Instance(16, 64, 128, 16),
    "trn2u.48xlarge": Instance(16, 64, 128, 16),
}


def instance(name: str) -> Instance:
    """The machine of an instance type. Raises UsageError for a name that the table does not have."""
    if name not in INSTANCES:
        raise unknown("instance type", name, INSTANCES)
    return INSTANCES[name]


# What PyPI has under these names is empty; the real ones come from the Neuron index.
PLACEHOLDERS = {"torch-neuronx": "1.0", "nki": "0.0.1", "neuronx-cc": "1.0", "libneuronxla": "1.0"}
LAST_XLA = (2, 9)  # torch-neuronx up to here is the PyTorch/XLA package
INSTALL = "pip install 'torch-neuronx=={family}.*' 'neuronx-cc==2.*' nki --extra-index-url <the Neuron index>"


@dataclass(frozen=True)
class Variable:
    """A variable that makes trouble when it is set to one of `values` (empty: to anything)."""

    name: str
    values: tuple[str, ...]
    status: Literal["warn", "fail"]
    why: str
    fix: str = ""


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "NEURON_RT_VISIBLE_CORES", (), "fail",
        "it gives every worker of a launcher the same cores, and each must see exactly one",
    ),
    Variable("NEURON_RT_ROOT_COMM_ID", (), "warn", "a value of an earlier job makes the next one hang"),
    Variable("NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS", (), "warn", "it was removed in SDK 2.32 and has no effect"),
    Variable("NEURON_RT_ENABLE_DGE_NOTIFICATIONS", ("1",), "warn", "it can cause time-outs on large graphs"),
    Variable("NEURON_RT_RESET_CORES", ("0",), "warn", "a core stays stuck after a crash"),
    Variable("NEURON_RT_INSPECT_ENABLE", ("1", "true"), "warn", "profiling was left on"),
    Variable("NEURON_LAUNCH_BLOCKING", ("1",), "warn", "every operator waits: for debugging only"),
    Variable("TORCH_NEURONX_DISABLE_NEFF_CACHE", ("1",), "warn", "every graph is compiled again at every start"),
    Variable("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", ("1",), "warn", "it fills /tmp"),
    Variable("NKI_SIMULATOR", ("1",), "warn", "kernels run on the CPU"),
    Variable("TORCH_DEVICE_BACKEND_AUTOLOAD", ("0",), "warn", "torch does not load the Neuron device by itself"),
)  # fmt: skip

# Words in what a tool or torch says -> what to type. The first that is found counts.
SYMPTOMS: tuple[tuple[str, str], ...] = (
    ("Failed to discover neuron devices", "sudo modprobe neuron; in a container add --device=/dev/neuron0 ..."),
    ("Unable to determine Neuron Driver version", "sudo apt-get install linux-headers-$(uname -r) aws-neuronx-dkms"),
    ("permission denied", "sudo usermod -aG neuron $USER, then log in again"),
    ("libnccom", "sudo apt-get install aws-neuronx-collectives libhwloc15"),
    ("libnrt", "sudo apt-get install aws-neuronx-runtime-lib"),
    ("No module named 'nki'", INSTALL.format(family="2.14")),
    ("No module named 'torch_neuronx'", INSTALL.format(family="2.14")),
    ("device type at start of device string: neuron", INSTALL.format(family="2.14")),
    ("NeuronCore(s) not available", "end the process that holds the cores: neuron-ls shows its pid"),
    ("NEFF version mismatch", "update aws-neuronx-runtime-lib and -collectives, and empty the NEFF cache"),
    ("Too many open files", "ulimit -n 65535"),
)


def fix_for(text: str, otherwise: str) -> str:
    """What to type for a message seen in the field."""
    lowered = text.lower()
    return next((fix for sign, fix in SYMPTOMS if sign.lower() in lowered), otherwise)


def numbers(text: str) -> tuple[int, ...]:
    """'2.13.0+cpu' -> (2, 13, 0)."""
    parts = []
    for part in text.partition("+")[0].split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)
