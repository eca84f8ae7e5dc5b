"""The machine as probes see it: files under a root, tools on a PATH, packages on a path. Tests give a made-up one.

Nothing here writes, and nothing imports torch: what needs torch runs as `python -m trnt.doctor.probe TASK`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trnt.doctor import neuron_ls
from trnt.doctor.facts import AMAZON, PCI

Status = Literal["pass", "warn", "fail", "skip"]
TIMEOUTS_S = {"look": 60.0, "device": 300.0, "compile": 900.0, "allreduce": 900.0}  # a first compile takes minutes
TOOL_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Finding:
    """What a probe saw; `fix` is a line a person can paste, empty when nothing is wrong."""

    status: Status
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Ran:
    """How a tool ended: its exit code, or why there is none."""

    code: int | None
    out: str = ""
    err: str = ""
    why: str = ""

    @property
    def said(self) -> str:
        """Its first line that says something."""
        lines = [line.strip() for line in (self.err + "\n" + self.out).splitlines() if line.strip()]
        return self.why or (lines[0] if lines else f"exit code {self.code}")


def connect(host: str, port: int, timeout_s: float) -> str | None:
    """None when a TCP connection can be made, else why not."""
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


@dataclass
class Machine:
    """What probes ask."""

    require: str | None = None
    nodes: int = 1
    root: Path = Path("/")
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: str = sys.executable
    python_version: tuple[int, ...] = tuple(sys.version_info[:3])
    in_venv: bool = sys.prefix != sys.base_prefix
    site: list[str] | None = None
    arch: str = field(default_factory=platform.machine)
    system: str = field(default_factory=platform.system)
    nofile: int = field(default_factory=lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    disk: Callable[[Path], Any] = shutil.disk_usage
    connect: Callable[[str, int, float], str | None] = connect
    access: Callable[[Path, int], bool] = os.access
    tool_timeout_s: float = TOOL_TIMEOUT_S
    _answers: dict[str, dict[str, Any] | str] = field(default_factory=dict, repr=False)

    def at(self, path: str) -> Path:
        """A path under this machine's root."""
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        """A small file's content, None when it cannot be read."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def which(self, name: str) -> Path | None:
        """A tool on the PATH."""
        found = shutil.which(name, path=self.env.get("PATH", ""))
        return Path(found) if found else None

    def tool(self, name: str) -> Path | None:
        """A Neuron tool: on the PATH, or in its usual folder."""
        usual = self.at(f"/opt/aws/neuron/bin/{name}")
        return self.which(name) or (usual if usual.is_file() else None)

    def run(self, words: Sequence[str], timeout_s: float | None = None, **env: str) -> Ran:
        """Run a tool in a process of its own, stopped after a while."""
        limit = self.tool_timeout_s if timeout_s is None else timeout_s
        try:
            done = subprocess.run(
                list(words), capture_output=True, text=True, errors="replace", timeout=limit, check=False,
                env={**self.env, **env}, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Ran(None, why=f"no answer within {limit:.0f} s")
        except OSError as error:
            return Ran(None, why=f"cannot start {words[0]}: {error.strerror}")
        if done.returncode < 0:
            return Ran(done.returncode, done.stdout, done.stderr, f"died with {signal.Signals(-done.returncode).name}")
        return Ran(done.returncode, done.stdout, done.stderr)

    def ask(self, task: str) -> dict[str, Any] | str:
        """The answer of `trnt.doctor.probe`, asked once; a text when it crashed, hung or printed something else."""
        if task not in self._answers:
            load = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if task == "look" else {}
            self._answers[task] = self._ask(task, load)
        return self._answers[task]

    def _ask(self, task: str, env: dict[str, str]) -> dict[str, Any] | str:
        done = self.run([self.python, "-m", "trnt.doctor.probe", task], TIMEOUTS_S[task], **env)
        if done.why:
            return done.why
        try:
            answer = json.loads(done.out.strip().splitlines()[-1])
        except (ValueError, IndexError):
            lines = done.err.strip().splitlines()
            return lines[-1] if lines else "printed nothing"
        return answer if isinstance(answer, dict) else "printed something else"

    @functools.cached_property
    def packages(self) -> dict[str, importlib.metadata.Distribution]:
        """Installed packages by their normal name; none is imported."""
        found: dict[str, importlib.metadata.Distribution] = {}
        path = sys.path if self.site is None else self.site
        for package in importlib.metadata.distributions(path=path):
            name = package.metadata["Name"]
            if name:
                found.setdefault(name.lower().replace("_", "-"), package)
        return found

    def version(self, package: str) -> str | None:
        """The installed version of a package."""
        found = self.packages.get(package)
        return None if found is None else found.version

    def system_package(self, name: str) -> str | None:
        """The version of a Debian or RPM package, None when neither tool knows it."""
        for words in (["dpkg-query", "-W", "-f", "${Version}", name], ["rpm", "-q", "--qf", "%{VERSION}", name]):
            if self.which(words[0]):
                done = self.run(words)
                if done.code == 0 and done.out.strip():
                    return done.out.strip()
        return None

    @functools.cached_property
    def chips(self) -> list[tuple[str, bool]]:
        """(family, whether the driver has it) of every Neuron chip on the PCI bus."""
        found = []
        folder = self.at("/sys/bus/pci/devices")
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            name = path.relative_to(self.root)
            family = PCI.get(self.text(f"{name}/device") or "")
            if family and self.text(f"{name}/vendor") == AMAZON:
                found.append((family, (path / "driver").exists()))
        return found

    @functools.cached_property
    def device_files(self) -> list[int]:
        """The numbers of /dev/neuron*, rising."""
        folder = self.at("/dev")
        names = [path.name.removeprefix("neuron") for path in folder.glob("neuron[0-9]*")] if folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdigit())

    @property
    def module_loaded(self) -> bool:
        return self.at("/sys/module/neuron").is_dir()

    @property
    def is_neuron(self) -> bool:
        """Whether anything of a Neuron machine is here."""
        return bool(self.chips or self.device_files or self.module_loaded)

    @property
    def in_container(self) -> bool:
        groups = self.text("/proc/1/cgroup") or ""
        return self.at("/.dockerenv").exists() or any(word in groups for word in ("docker", "kubepods", "containerd"))

    @functools.cached_property
    def listing(self) -> neuron_ls.Listing | str:
        """What neuron-ls says, asked once: the new flag, then the old one; a text when it says nothing usable."""
        tool = self.tool("neuron-ls")
        if tool is None:
            return "neuron-ls is not installed"
        said = ""
        for words in (["--output-format", "json"], ["-j"]):
            done = self.run([str(tool), *words])
            try:
                if done.code == 0:
                    return neuron_ls.parse(done.out)
            except (ValueError, TypeError, KeyError, AttributeError):
                said = f"neuron-ls prints no JSON: {done.said[:80]}"
                continue
            said = said or f"neuron-ls: {done.said[:160]}"
            if done.code is None:
                break
        return said
