"""From the chip to the runtime: PCI, kernel module, device files, tools, cores, libraries."""

from __future__ import annotations

import os
from pathlib import Path

from trnt.doctor.facts import INSTANCES, OLDEST_DRIVER, SUPPORTED, fix_for, numbers
from trnt.doctor.machine import Finding, Machine
from trnt.doctor.table import Check

DKMS = "sudo apt-get install linux-headers-$(uname -r) aws-neuronx-dkms"
HEALTH = ("mem_ecc_uncorrected", "sram_ecc_uncorrected", "mem_ecc_repairable_uncorrected")


def check_pci(machine: Machine) -> Finding:
    if not machine.chips:
        return Finding("skip", "no Neuron chip is visible on the PCI bus")
    families = sorted({family for family, _ in machine.chips})
    detail = f"{len(machine.chips)} chips of {', '.join(families)}"
    if not set(families) <= set(SUPPORTED):
        return Finding("fail", f"{detail}: TorchNeuron needs Trn2 or Trn3", "start a Trn2 or Trn3 instance")
    if not all(driven for _, driven in machine.chips):
        return Finding("fail", f"{detail}, without a driver", DKMS)
    return Finding("pass", detail)


def check_module(machine: Machine) -> Finding:
    if not machine.module_loaded:
        if machine.in_container:
            return Finding("skip", "a container does not see it" if machine.device_files else "not loaded")
        return Finding("fail", "the kernel module neuron is not loaded", f"sudo modprobe neuron || {DKMS}")
    loaded = machine.text("/sys/module/neuron/version") or "unknown"
    modinfo = machine.run(["modinfo", "-F", "version", "neuron"]) if machine.which("modinfo") else None
    on_disk = modinfo.out.strip() if modinfo is not None and modinfo.code == 0 else ""
    if on_disk and on_disk != loaded:
        return Finding(
            "warn", f"{loaded} is loaded and {on_disk} is installed", "sudo rmmod neuron && sudo modprobe neuron"
        )
    if numbers(loaded) and numbers(loaded) < numbers(OLDEST_DRIVER):
        return Finding("warn", f"{loaded} is older than {OLDEST_DRIVER} of SDK 2.32", f"{DKMS}, then reboot")
    return Finding("pass", loaded)


def check_files(machine: Machine) -> Finding:
    files = machine.device_files
    if not files:
        if machine.in_container:
            return Finding(
                "fail", "this container has no /dev/neuron*", "start it with --device=/dev/neuron0 (one for each chip)"
            )
        return Finding(
            "fail", "no /dev/neuron*, though the driver is there", "sudo rmmod neuron && sudo modprobe neuron"
        )
    if files != list(range(files[0], files[0] + len(files))):
        return Finding("fail", f"/dev/neuron{files} have holes", "give the container consecutive devices")
    return Finding("pass", f"{len(files)} device files")


def check_access(machine: Machine) -> Finding:
    denied = [n for n in machine.device_files if not machine.access(machine.at(f"/dev/neuron{n}"), os.R_OK | os.W_OK)]
    if denied:
        return Finding(
            "fail", f"/dev/neuron{denied[0]} may not be opened", "sudo usermod -aG neuron $USER, then log in again"
        )
    return Finding("pass", "every device file may be opened")


def check_health(machine: Machine) -> Finding:
    base = "/sys/devices/virtual/neuron_device"
    bad, seen = [], 0
    for number in machine.device_files:
        for name in HEALTH:
            text = machine.text(f"{base}/neuron{number}/stats/hardware/{name}")
            seen += text is not None
            if text and text.split()[0].isdigit() and int(text.split()[0]):
                bad.append(f"neuron{number} {name} {text.split()[0]}")
    if bad:
        return Finding("warn", "; ".join(bad[:4]), "reboot; replace the machine when it comes back")
    return Finding("pass", "no memory errors counted") if seen else Finding("skip", "the counters cannot be read")


def check_tools(machine: Machine) -> Finding:
    if machine.which("neuron-ls"):
        return Finding("pass", str(machine.which("neuron-ls")))
    if machine.tool("neuron-ls"):
        return Finding("warn", "not on the PATH", "export PATH=/opt/aws/neuron/bin:$PATH")
    return Finding("warn", "neuron-ls is not installed", "sudo apt-get install aws-neuronx-tools")


def check_listing(machine: Machine) -> Finding:
    found = machine.listing
    if isinstance(found, str):
        return Finding("fail", found, fix_for(found, "sudo rmmod neuron && sudo modprobe neuron, then neuron-ls again"))
    if not found.devices:
        return Finding("fail", "neuron-ls lists no device", "sudo rmmod neuron && sudo modprobe neuron")
    return Finding("pass", f"{found.instance_type or 'unknown instance'}, {len(found.devices)} devices")


def lnc_of(machine: Machine) -> tuple[str | None, str]:
    """(what the environment asks for, where it says so)."""
    for name in ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE"):
        if machine.env.get(name):
            return machine.env[name], name
    text = machine.text("/opt/aws/neuron/logical_nc_config") or ""
    if "=" in text:
        return text.partition("=")[2].strip(), "/opt/aws/neuron/logical_nc_config"
    return None, ""


def check_cores(machine: Machine) -> Finding:
    found = machine.listing
    assert not isinstance(found, str)
    asked, place = lnc_of(machine)
    if asked is not None and asked not in ("1", "2"):
        return Finding(
            "fail", f"{place} is {asked}", f"unset {place}" if "/" not in place else f"write 1 or 2 in {place}"
        )
    if asked is not None and found.lnc is not None and int(asked) != found.lnc:
        return Finding(
            "fail", f"{place} asks for LNC {asked} and neuron-ls counts with LNC {found.lnc}",
            "export NEURON_LOGICAL_NC_CONFIG with one value for everything",
        )  # fmt: skip
    detail = f"{found.cores} logical cores, LNC {found.lnc or 'unknown'}"
    known = INSTANCES.get(found.instance_type or "")
    if known is None:
        return Finding("pass", f"{detail} ({found.instance_type or 'the instance'} is not in trnt's table)")
    expected = known.cores_lnc1 if found.lnc == 1 else known.cores_lnc2 or known.cores_lnc1
    if found.cores != expected:
        return Finding(
            "warn", f"{found.cores} of {expected} cores of a {found.instance_type} are visible here",
            "give the container all devices, or start as many workers as there are cores",
        )  # fmt: skip
    return Finding("pass", detail)


def check_busy(machine: Machine) -> Finding:
    found = machine.listing
    assert not isinstance(found, str)
    taken = [device for device in found.devices if device.processes]
    if not taken:
        return Finding("pass", "no core is taken")
    cores = sum(device.cores for device in taken)
    process = taken[0].processes[0]
    here = machine.at(f"/proc/{process.pid}").is_dir()
    who = f"pid {process.pid} ({process.command or 'no name'})" if here else "a process outside this container"
    status = "fail" if cores == found.cores else "warn"
    fix = f"kill {process.pid}" if here else "end it where it runs; neuron-ls there shows it"
    return Finding(status, f"{who} holds {cores} of {found.cores} cores", fix)  # type: ignore[arg-type]


def library(machine: Machine, name: str) -> Path | None:
    """A shared library in the runtime's folder or on LD_LIBRARY_PATH."""
    folders = [
        machine.at("/opt/aws/neuron/lib"),
        *map(Path, filter(None, machine.env.get("LD_LIBRARY_PATH", "").split(":"))),
    ]
    return next((path for folder in folders if folder.is_dir() for path in sorted(folder.glob(f"{name}.so*"))), None)


def check_runtime(machine: Machine) -> Finding:
    if library(machine, "libnrt") is None:
        return Finding("fail", "libnrt.so is missing", "sudo apt-get install aws-neuronx-runtime-lib")
    return Finding("pass", machine.system_package("aws-neuronx-runtime-lib") or "libnrt.so is there")


def check_collectives(machine: Machine) -> Finding:
    if library(machine, "libnccom") is None:
        return Finding("fail", "libnccom.so is missing", "sudo apt-get install aws-neuronx-collectives libhwloc15")
    return Finding("pass", machine.system_package("aws-neuronx-collectives") or "libnccom.so is there")


CHECKS = (
    Check("driver.pci", "Neuron chips", check_pci, "ids on the PCI bus, and whether a driver has them"),
    Check(
        "driver.module", "Kernel module", check_module, "/sys/module/neuron and the version on the disk",
        "`Unable to determine Neuron Driver version`, `requires Neuron Driver version ... or greater`", neuron=True,
    ),
    Check(
        "driver.files", "Device files", check_files, "/dev/neuron*, their numbers, container or not",
        "`No neuron device available`, `Failed to discover neuron devices`", neuron=True,
    ),
    Check(
        "driver.access", "Access", check_access, "whether each device file may be read and written",
        "`permission denied` on /dev/neuron0", needs=("driver.files",), neuron=True,
    ),
    Check(
        "driver.health", "Health", check_health, "error counters under /sys; they are only read",
        "runtime status 1201 to 1205", needs=("driver.files",), neuron=True,
    ),
    Check("tools.path", "neuron-ls", check_tools, "neuron-ls on the PATH or in /opt/aws/neuron/bin", neuron=True),
    Check(
        "tools.listing", "Devices listed", check_listing, "`neuron-ls` as JSON, in the old form or the new",
        "neuron-ls hangs, or prints a `FATA` line", needs=("driver.files", "driver.access"), neuron=True,
    ),
    Check(
        "tools.cores", "Cores", check_cores, "logical cores against the instance type, LNC here and in neuron-ls",
        "the process group fails at its start; `NCC_EARG001`", needs=("tools.listing",), neuron=True,
    ),
    Check(
        "tools.busy", "Cores free", check_busy, "processes on the devices", "`NeuronCore(s) not available`",
        needs=("tools.listing",), neuron=True,
    ),
    Check(
        "runtime.libnrt", "Runtime", check_runtime, "libnrt.so and its package",
        "`Failed to import torch_neuronx C++ extensions`", neuron=True,
    ),
    Check(
        "runtime.libnccom", "Collectives", check_collectives, "libnccom.so and its package",
        "`Error opening libnccom.so`", neuron=True,
    ),
)  # fmt: skip
