"""More than 25 machines, healthy and broken: what the doctor finds on each, and the line it gives to paste."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.fake import Fake, Usage, listing
from trnt.doctor.run import CHECKS, examine, ready, render

Spoil = Callable[[Fake], Any]


@dataclass(frozen=True)
class Case:
    """What is wrong, the check that says so, its status, and words of its detail and fix."""

    spoil: Spoil
    check: str
    status: str
    says: str
    fix: str = ""


def set_(**values: Any) -> Spoil:
    return lambda fake: fake.env.update(values)


def fields(**values: Any) -> Spoil:
    return lambda fake: fake.fields.update(values)


def answer(task: str, **values: Any) -> Spoil:
    return lambda fake: fake.answers[task].update(values)


def no_driver(fake: Fake) -> None:
    fake.remove("sys/module/neuron")
    for n in range(16):
        fake.remove(f"dev/neuron{n}")
        fake.remove(f"sys/bus/pci/devices/0000:{n:02x}:00.0/driver")


def container_without_devices(fake: Fake) -> None:
    fake.write(".dockerenv", "")
    fake.remove("sys/bus")
    for n in range(16):
        fake.remove(f"dev/neuron{n}")
    fake.tool("neuron-ls", "echo 'FATA[0000] Failed to discover neuron devices' >&2; exit 1")


def one_chip_of_sixteen(fake: Fake) -> None:
    fake.write(".dockerenv", "")
    for n in range(1, 16):
        fake.remove(f"dev/neuron{n}")
    fake.neuron_ls(listing(1, busy=1))
    fake.remove("proc/4711")


def holes(fake: Fake) -> None:
    fake.remove("dev/neuron3")


def ecc(fake: Fake) -> None:
    fake.write("sys/devices/virtual/neuron_device/neuron5/stats/hardware/mem_ecc_uncorrected", "2\n")


def xla(fake: Fake) -> None:
    fake.package("torch-neuronx", "2.9.0.2.15", "Requires-Dist: torch-xla (==2.9.*)")


def tools_off_path(fake: Fake) -> None:
    (fake.root / "opt/aws/neuron/bin").mkdir(parents=True)
    (fake.bin / "neuron-ls").rename(fake.root / "opt/aws/neuron/bin/neuron-ls")


def old_sdk_part(fake: Fake) -> None:
    fake.package("neuronx-cc", "2.27.5334.0")


def full_disk(fake: Fake) -> None:
    fake.free = 1 << 30


def tiny_shm(fake: Fake) -> None:
    fake.fields["disk"] = lambda path: Usage(64 << 20 if path.name == "shm" else 1 << 41, 0, 1 << 40)


def network_cache(fake: Fake) -> None:
    fake.write("proc/mounts", "server:/x /tmp nfs4 rw 0 0\n/dev/root / ext4 rw 0 0\n")


def no_efa(fake: Fake) -> None:
    fake.fields["nodes"] = 2


def efa_unset(fake: Fake) -> None:
    fake.fields["nodes"] = 2
    fake.tool("fi_info", "echo 'provider: efa'")


def online(fake: Fake, why: str | None) -> None:
    del fake.env["HF_HUB_OFFLINE"]
    fake.fields["connect"] = lambda host, port, seconds: why


def broken_proxy(fake: Fake) -> None:
    online(fake, "Connection refused")
    fake.env["HTTPS_PROXY"] = "http://me:secret@proxy.local:3128"


def trn1(fake: Fake) -> None:
    for n in range(16):
        fake.pci(n, "0x7164")


BROKEN: dict[str, Case] = {
    "no driver": Case(no_driver, "driver.pci", "fail", "without a driver", "aws-neuronx-dkms"),
    "module not loaded": Case(
        lambda fake: fake.remove("sys/module/neuron"), "driver.module", "fail", "not loaded", "modprobe neuron"
    ),
    "driver too old": Case(
        lambda fake: (fake.write("sys/module/neuron/version", "2.20.1.0"), fake.tool("modinfo", "exit 1")),
        "driver.module",
        "warn",
        "older than 2.30.2.0",
        "aws-neuronx-dkms",
    ),
    "driver waits for a reload": Case(
        lambda fake: fake.tool("modinfo", "echo 2.99.0.0"),
        "driver.module",
        "warn",
        "2.99.0.0 is installed",
        "rmmod neuron",
    ),
    "trn1": Case(trn1, "driver.pci", "fail", "TorchNeuron needs Trn2 or Trn3", "Trn2 or Trn3 instance"),
    "container without devices": Case(
        container_without_devices, "driver.files", "fail", "container has no /dev/neuron", "--device=/dev/neuron0"
    ),
    "container with one chip, busy elsewhere": Case(
        one_chip_of_sixteen, "tools.busy", "fail", "outside this container", "end it where it runs"
    ),
    "container with one chip": Case(one_chip_of_sixteen, "tools.cores", "warn", "4 of 64 cores", "devices"),
    "devices with holes": Case(holes, "driver.files", "fail", "holes", "consecutive"),
    "devices without permission": Case(
        fields(access=lambda path, mode: "neuron" not in path.name),
        "driver.access",
        "fail",
        "neuron0",
        "usermod -aG neuron",
    ),
    "memory errors": Case(ecc, "driver.health", "warn", "neuron5 mem_ecc_uncorrected 2", "reboot"),
    "another process holds 8 cores": Case(
        lambda fake: fake.neuron_ls(listing(16, busy=2)),
        "tools.busy",
        "warn",
        "pid 4711 (python train.py) holds 8 of 64",
        "kill 4711",
    ),
    "another process holds all": Case(
        lambda fake: fake.neuron_ls(listing(16, busy=16)), "tools.busy", "fail", "holds 64 of 64", "kill 4711"
    ),
    "neuron-ls hangs": Case(
        lambda fake: (fake.tool("neuron-ls", "exec sleep 60"), fake.fields.update(tool_timeout_s=0.5)),
        "tools.listing",
        "fail",
        "no answer within",
        "rmmod neuron",
    ),
    "neuron-ls prints garbage": Case(
        lambda fake: fake.tool("neuron-ls", "echo hello"), "tools.listing", "fail", "no JSON: hello", "neuron-ls again"
    ),
    "neuron-ls finds nothing": Case(
        lambda fake: fake.tool("neuron-ls", "echo 'FATA[0000] Failed to discover neuron devices' >&2; exit 1"),
        "tools.listing",
        "fail",
        "Failed to discover",
        "modprobe neuron",
    ),
    "neuron-ls off the PATH": Case(
        tools_off_path, "tools.path", "warn", "not on the PATH", "export PATH=/opt/aws/neuron/bin"
    ),
    "no tools": Case(
        lambda fake: fake.remove("bin/neuron-ls"), "tools.path", "warn", "not installed", "aws-neuronx-tools"
    ),
    "LNC of the environment differs": Case(
        set_(NEURON_LOGICAL_NC_CONFIG="1"), "tools.cores", "fail", "LNC 1 and neuron-ls counts with LNC 2", "one value"
    ),
    "LNC is nonsense": Case(
        set_(NEURON_LOGICAL_NC_CONFIG="3"), "tools.cores", "fail", "is 3", "unset NEURON_LOGICAL_NC_CONFIG"
    ),
    "no runtime": Case(
        lambda fake: fake.remove("opt/aws/neuron/lib/libnrt.so.1"),
        "runtime.libnrt",
        "fail",
        "missing",
        "aws-neuronx-runtime-lib",
    ),
    "no collectives": Case(
        lambda fake: fake.remove("opt/aws/neuron/lib/libnccom.so.2"), "runtime.libnccom", "fail", "missing", "libhwloc"
    ),
    "XLA torch-neuronx": Case(xla, "packages.torch_neuronx", "fail", "PyTorch/XLA", "pip uninstall -y torch-neuronx"),
    "placeholder torch-neuronx": Case(
        lambda fake: fake.package("torch-neuronx", "1.0"),
        "packages.torch_neuronx",
        "fail",
        "placeholder",
        "pip uninstall",
    ),
    "placeholder nki": Case(
        lambda fake: fake.package("nki", "0.0.1"), "packages.nki", "fail", "placeholder", "pip uninstall -y nki"
    ),
    "placeholder neuronx-cc": Case(
        lambda fake: fake.package("neuronx-cc", "1.0.post1"),
        "packages.neuronx_cc",
        "fail",
        "placeholder",
        "pip uninstall",
    ),
    "no torch-neuronx": Case(
        lambda fake: fake.unpackage("torch-neuronx"),
        "packages.torch_neuronx",
        "fail",
        "not installed",
        "torch-neuronx==2.14.*",
    ),
    "inference image": Case(
        lambda fake: (fake.unpackage("torch-neuronx"), fake.package("libtorch-neuronx-lite", "2.13.1")),
        "packages.torch_neuronx",
        "fail",
        "inference image",
        "torch-neuronx==2.14.*",
    ),
    "torch of another family": Case(
        lambda fake: fake.package("torch", "2.13.0+cpu"),
        "packages.torch_neuronx",
        "fail",
        "does not belong to torch 2.13.0",
        "torch-neuronx==2.13.*",
    ),
    "CUDA torch": Case(
        lambda fake: fake.package("torch", "2.14.0+cu130"),
        "packages.torch_build",
        "warn",
        "CUDA build",
        "CPU wheel index",
    ),
    "nki missing": Case(lambda fake: fake.unpackage("nki"), "packages.nki", "fail", "not installed", "nki"),
    "mixed SDK": Case(old_sdk_part, "packages.sdk", "warn", "SDK 2.32: neuronx-cc", "update every part to SDK 2.33"),
    "Python too old": Case(
        fields(python_version=(3, 10, 2)), "system.python", "fail", "older than 3.11", "Python 3.12"
    ),
    "Python without a wheel": Case(
        fields(python_version=(3, 11, 7)), "system.python", "fail", "3.12 to 3.14", "python3.12 -m venv"
    ),
    "system Python": Case(fields(in_venv=False), "system.python", "warn", "the system's own", "venv"),
    "arm": Case(fields(arch="aarch64"), "system.os", "fail", "aarch64", "x86_64"),
    "another Linux": Case(
        lambda fake: fake.write("etc/os-release", 'ID=debian\nPRETTY_NAME="Debian 12"\n'),
        "system.os",
        "warn",
        "Debian 12",
        "Ubuntu",
    ),
    "torch import segfaults": Case(
        lambda fake: fake.python_dies("look", "kill -SEGV $$"),
        "device.torch",
        "fail",
        "died with SIGSEGV",
        "pip install",
    ),
    "torch does not find nki": Case(
        lambda fake: fake.python_dies("look", "echo \"ModuleNotFoundError: No module named 'nki'\" >&2; exit 1"),
        "device.torch",
        "fail",
        "No module named 'nki'",
        "nki --extra-index-url",
    ),
    "the device does not register": Case(
        lambda fake: fake.python_dies(
            "device", "echo 'Expected one of cpu device type at start of device string: neuron' >&2; exit 1"
        ),
        "device.kind",
        "fail",
        "no such device",
        "torch-neuronx==2.14.*",
    ),
    "the device counts wrongly": Case(
        answer("device", right=False, error=3.5), "device.matmul", "fail", "wrong by 3.5", "--report"
    ),
    "compilation fails": Case(
        lambda fake: fake.python_dies("compile", "echo 'RuntimeError: NCC_EARG001' >&2; exit 1"),
        "device.compile",
        "fail",
        "NCC_EARG001",
        "--report",
    ),
    "first compilation is slow": Case(
        answer("compile", seconds=300.0), "device.compile", "warn", "300.00 s", "TORCH_NEURONX_NEFF_CACHE_DIR"
    ),
    "the sum is wrong": Case(
        answer("allreduce", right=False, error=1.0), "device.allreduce", "fail", "wrong by 1", "--report"
    ),
    "NEURON_RT_VISIBLE_CORES set globally": Case(
        set_(NEURON_RT_VISIBLE_CORES="0-3"),
        "environment.variables",
        "fail",
        "NEURON_RT_VISIBLE_CORES=0-3",
        "unset NEURON_RT_VISIBLE_CORES",
    ),
    "NEURON_RT_NUM_CORES conflicts": Case(
        set_(NEURON_RT_NUM_CORES="32"),
        "environment.num_cores",
        "warn",
        "is 32, and 64 cores",
        "unset NEURON_RT_NUM_CORES",
    ),
    "simulator left on": Case(
        set_(NKI_SIMULATOR="1"), "environment.variables", "warn", "NKI_SIMULATOR=1", "unset NKI_SIMULATOR"
    ),
    "disk full": Case(full_disk, "system.disk", "warn", "1.0 GiB free", "--out"),
    "compiled graphs on a network disk": Case(
        network_cache, "environment.neff_cache", "warn", "network file system (nfs4)", "TORCH_NEURONX_NEFF_CACHE_DIR"
    ),
    "tiny /dev/shm": Case(tiny_shm, "system.shm", "warn", "64.0 MiB", "--shm-size"),
    "few open files": Case(fields(nofile=1024), "system.files", "warn", "1024", "ulimit -n 65535"),
    "little memory": Case(
        lambda fake: fake.write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 2000000 kB\n"),
        "system.memory",
        "warn",
        "1.9 GiB free",
        "--layers",
    ),
    "no network": Case(
        lambda fake: online(fake, "Network is unreachable"),
        "environment.hub",
        "warn",
        "cannot be reached",
        "HF_HUB_OFFLINE=1",
    ),
    "broken proxy": Case(broken_proxy, "environment.hub", "warn", "proxy proxy.local does not answer", "HTTPS_PROXY"),
    "EFA missing on two machines": Case(no_efa, "environment.efa", "fail", "no fi_info", "EFA installer"),
    "EFA not chosen": Case(efa_unset, "environment.efa", "warn", "FI_PROVIDER=efa", "export FI_PROVIDER=efa"),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_machine_is_found_with_its_fix(tmp_path: Path, case: Case) -> None:
    fake = Fake(tmp_path)
    case.spoil(fake)
    results = examine(fake.machine())
    found = next(result.finding for result in results if result.check.id == case.check)
    assert found.status == case.status, found
    assert case.says in found.detail
    assert case.fix in found.fix
    assert "\n" not in found.fix
    assert "secret" not in render(results, strict=False)
    assert ready(results, strict=False) == all(result.finding.status != "fail" for result in results)


def healthy(tmp_path: Path, **options: Any) -> Fake:
    return Fake(tmp_path, **options)


def small(tmp_path: Path) -> Fake:
    fake = Fake(tmp_path, chips=1, kind="trn2.3xlarge")
    fake.answers["device"]["count"] = 4
    return fake


def trn3(tmp_path: Path) -> Fake:
    return Fake(tmp_path, chips=4, device="0x7565", kind="trn3pds")


def lnc1(tmp_path: Path) -> Fake:
    fake = Fake(tmp_path)
    fake.neuron_ls(listing(16, cores=8, lnc=1))
    fake.env["NEURON_LOGICAL_NC_CONFIG"] = "1"
    return fake


def new_form(tmp_path: Path) -> Fake:
    fake = Fake(tmp_path)
    fake.neuron_ls(listing(16, new=True))
    return fake


def old_tool(tmp_path: Path) -> Fake:
    fake = Fake(tmp_path)
    fake.neuron_ls(listing(16), old_tool=True)
    return fake


def two_machines(tmp_path: Path) -> Fake:
    fake = Fake(tmp_path)
    efa_unset(fake)
    fake.env |= {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"}
    return fake


HEALTHY = {
    "trn2.48xlarge": (healthy, "64 logical cores, LNC 2"),
    "trn2.3xlarge": (small, "4 logical cores, LNC 2"),
    "trn3": (trn3, "not in trnt's table"),
    "LNC 1": (lnc1, "128 logical cores, LNC 1"),
    "neuron-ls of 2.34": (new_form, "64 logical cores, LNC 2"),
    "neuron-ls of 2.31": (old_tool, "64 logical cores, LNC 2"),
    "two machines": (two_machines, "64 logical cores"),
}


@pytest.mark.parametrize("case", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_healthy_machine_has_nothing_wrong(tmp_path: Path, case: tuple[Callable[[Path], Fake], str]) -> None:
    results = examine(case[0](tmp_path).machine())
    # the C++ compiler and the completion are this computer's, not the made-up machine's
    wrong = [(r.check.id, r.finding) for r in results if r.finding.status in ("warn", "fail")]
    assert [one for one in wrong if one[0] != "system.compiler"] == []
    cores = next(r.finding.detail for r in results if r.check.id == "tools.cores")
    assert case[1] in cores
    kind = next(r.finding.detail for r in results if r.check.id == "device.kind")
    assert kind.startswith("Trainium")


def test_what_needs_something_broken_is_skipped_and_says_what(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    container_without_devices(fake)
    found = {result.check.id: result.finding for result in examine(fake.machine())}
    assert (found["driver.access"].status, found["driver.access"].detail) == ("skip", "first: driver.files")
    assert found["tools.cores"].status == "skip"


def test_a_cpu_machine_is_ready_and_a_required_device_is_not(tmp_path: Path) -> None:
    fake = Fake(tmp_path, chips=0)
    fake.remove("sys/module/neuron")
    found = {result.check.id: result.finding for result in examine(fake.machine())}
    assert found["device.kind"].detail == "no Trainium here: CPU runs are ready"
    neuron = [check.id for check in CHECKS if check.neuron]
    assert {found[name].status for name in neuron} == {"skip"}
    for kind, ok in (("neuron", False), ("cuda", False), ("cpu", True)):
        fake.fields["require"] = kind
        results = examine(fake.machine())
        assert ready(results, strict=False) == ok
        assert ok or next(r.finding.fix for r in results if r.check.id == "device.kind")


def test_the_machine_is_left_as_it_was(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    machine = fake.machine()
    before = {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))}
    examine(machine)
    assert {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))} == before
