"""Made-up machines: a root with /dev, /sys and /proc, tools on a PATH, packages in a folder, a Python that answers."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path
from typing import Any

from trnt.doctor.facts import AMAZON, SDKS
from trnt.doctor.machine import Machine

Usage = namedtuple("Usage", "total used free")
GOOD = {
    "look": {
        "torch": "2.14.0+cpu",
        "import_s": 3.0,
        "threads": 8,
        "devices": {"cpu": True, "cuda": False},
        "cpu_flops": 1e12,
    },
    "device": {"count": 64, "name": "neuron:0", "right": True, "error": 1e-5, "seconds": 3.0},
    "compile": {"right": True, "error": 1e-6, "seconds": 40.0},
    "allreduce": {"right": True, "error": 0.0, "seconds": 9.0},
}
PACKAGES = {
    "torch": "2.14.0+cpu", "torch-neuronx": "2.14.3.0.1", "nki": "0.7.0", "neuronx-cc": "2.28.7631.0",
    "torchtitan": "0.3.0", "transformers": "5.16.0", "safetensors": "0.8.0", "triton": "3.5.0",
}  # fmt: skip


def listing(
    devices: int, *, kind: str = "trn2.48xlarge", cores: int = 4, lnc: int = 2, new: bool = False, busy: int = 0
) -> Any:
    """What neuron-ls prints; `busy` devices are held by pid 4711."""
    process = [{"pid": 4711, "command": "python train.py", "neuron_runtime_version": "2.35.30"}]
    found = [
        {
            "neuron_device": n, "bdf": f"0000:{n:02x}:00.0", "nc_count": cores, "memory_size": 103079215104,
            "connected_to": None, "neuroncore_ids": [n * cores + c for c in range(cores)],
            "neuron_processes": process if n < busy else [],
        }
        for n in range(devices)
    ]  # fmt: skip
    top = {"instance_type": kind, "instance_id": "i-0123456789abcdef0", "logical_neuroncore_config": lnc}
    if new:
        return {**{key.replace("_", "-"): value for key, value in top.items()}, "neuron-devices": found}
    return [{**top, **one} for one in found]


class Fake:
    """A healthy trn2.48xlarge, to be spoiled."""

    def __init__(self, root: Path, *, chips: int = 16, device: str = "0x7364", kind: str = "trn2.48xlarge") -> None:
        self.root = root
        self.bin, self.site = root / "bin", root / "site"
        for folder in (self.bin, self.site, root / "dev" / "shm", root / "tmp", root / "home"):
            folder.mkdir(parents=True, exist_ok=True)
        self.answers: dict[str, Any] = json.loads(json.dumps(GOOD))
        self.fields: dict[str, Any] = {
            "python_version": (3, 12, 4),
            "in_venv": True,
            "nofile": 1 << 20,
            "arch": "x86_64",
        }
        self.free = 1 << 40
        self.env = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(root / "home"), "HF_HUB_OFFLINE": "1"}
        self.write("etc/os-release", 'ID=ubuntu\nVERSION_ID="26.04"\nPRETTY_NAME="Ubuntu 26.04"\n')
        self.write("proc/sys/kernel/osrelease", "7.0.0-aws")
        self.write("proc/meminfo", f"MemTotal: {2 << 30} kB\nMemAvailable: {1 << 30} kB\n")
        self.write("proc/4711/cmdline", "python")
        for n in range(chips):
            self.write(f"dev/neuron{n}", "")
            self.pci(n, device)
        self.write("sys/module/neuron/version", SDKS["2.33"]["aws-neuronx-dkms"])
        for name in ("libnrt.so.1", "libnccom.so.2"):
            self.write(f"opt/aws/neuron/lib/{name}", "")
        for name, version in PACKAGES.items():
            self.package(name, version)
        self.neuron_ls(listing(chips, kind=kind))
        versions = {name: version for name, version in SDKS["2.33"].items() if name.startswith("aws-")}
        cases = "".join(f'"{name}") printf {version};; ' for name, version in versions.items())
        self.tool("dpkg-query", f'case "${{@: -1}}" in {cases} *) exit 1;; esac')
        self.tool("modinfo", f"echo {SDKS['2.33']['aws-neuronx-dkms']}")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def remove(self, path: str) -> None:
        import shutil

        target = self.root / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    def pci(self, number: int, device: str, *, driver: bool = True) -> None:
        base = f"sys/bus/pci/devices/0000:{number:02x}:00.0"
        self.write(f"{base}/vendor", AMAZON + "\n")
        self.write(f"{base}/device", device + "\n")
        if driver:
            self.write(f"{base}/driver/name", "neuron-driver")

    def tool(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!/bin/bash\n{body}\n")
        (self.bin / name).chmod(0o755)

    def neuron_ls(self, found: Any, *, old_tool: bool = False) -> None:
        """A neuron-ls that prints this; an old one knows no --output-format."""
        (self.root / "listing.json").write_text(json.dumps(found))
        refuse = 'if [ "$1" = --output-format ]; then echo "unknown flag: --output-format" >&2; exit 2; fi\n'
        self.tool("neuron-ls", (refuse if old_tool else "") + f"cat {self.root}/listing.json")

    def package(self, name: str, version: str, *lines: str) -> None:
        """Replace a package's metadata; a native torch-neuronx has its entry point."""
        for old in self.site.glob(f"{name.replace('-', '_')}-*.dist-info"):
            self.remove(str(old.relative_to(self.root)))
        folder = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        text = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines])
        (folder / "METADATA").write_text(text + "\n")
        if name == "torch-neuronx" and version.startswith("2.1"):
            (folder / "entry_points.txt").write_text("[torch.backends]\ntorch_neuronx = torch_neuronx:_autoload\n")

    def unpackage(self, name: str) -> None:
        for old in self.site.glob(f"{name.replace('-', '_')}-*.dist-info"):
            self.remove(str(old.relative_to(self.root)))

    def python_dies(self, task: str, body: str) -> None:
        """The probe's process does this instead of answering."""
        self.answers[task] = None
        self.write(f"answers/{task}.sh", body)

    def machine(self) -> Machine:
        """The machine as the doctor sees it."""
        cases = []
        for task, answer in self.answers.items():
            if answer is not None:
                self.write(f"answers/{task}.sh", f"echo '{json.dumps(answer)}'")
            cases.append(f"{task}) source {self.root}/answers/{task}.sh;;")
        self.tool("python-probe", 'case "$3" in ' + " ".join(cases) + " esac")
        fields = {
            "disk": lambda path: Usage(1 << 41, 0, self.free),
            "connect": lambda host, port, s: None,
            **self.fields,
        }
        fields.setdefault("tool_timeout_s", 10.0)
        return Machine(
            root=self.root, env=self.env, python=str(self.bin / "python-probe"), site=[str(self.site)], **fields
        )
