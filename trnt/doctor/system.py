"""The machine itself: system, Python, memory, disk, limits, and trnt's own files."""

from __future__ import annotations

import platform
from pathlib import Path

from trnt import console, host_memory
from trnt.doctor.machine import Finding, Machine
from trnt.doctor.table import Check

MEMORY_WANTED = 8 << 30
DISK_WANTED = 10 << 30
SHM_WANTED = 1 << 30
NOFILE_WANTED = 65535
UBUNTUS = ("24.04", "26.04")


def check_os(machine: Machine) -> Finding:
    if machine.system != "Linux":
        return Finding("warn", platform.platform(), "use Linux: Trainium and the tests know no other system")
    release = dict(line.partition("=")[::2] for line in (machine.text("/etc/os-release") or "").splitlines())
    name = release.get("PRETTY_NAME", "Linux").strip('"')
    kernel = machine.text("/proc/sys/kernel/osrelease") or platform.release()
    detail = f"{name}, kernel {kernel}, {machine.arch}"
    if machine.is_neuron and machine.arch != "x86_64":
        return Finding("fail", f"{detail}: TorchNeuron has no build for it", "use an x86_64 machine")
    ubuntu = release.get("ID", "").strip('"') == "ubuntu"
    if machine.is_neuron and not (ubuntu and release.get("VERSION_ID", "").strip('"') in UBUNTUS):
        return Finding(
            "warn", f"{detail}: TorchNeuron's wheels are for Ubuntu 26.04", "use Ubuntu 26.04 or the TorchNeuron image"
        )
    return Finding("pass", detail)


def check_python(machine: Machine) -> Finding:
    found = ".".join(map(str, machine.python_version))
    if machine.python_version < (3, 11):
        return Finding("fail", f"{found} is older than 3.11", "install Python 3.12 or newer")
    if machine.is_neuron and not (3, 12) <= machine.python_version[:2] <= (3, 14):
        return Finding(
            "fail", f"{found}: torch-neuronx has wheels for 3.12 to 3.14", "python3.12 -m venv .venv, and install there"
        )
    if machine.is_neuron and not machine.in_venv:
        return Finding(
            "warn", f"{found}, the system's own", "python3 -m venv .venv && . .venv/bin/activate, and install there"
        )
    return Finding("pass", found)


def check_memory(machine: Machine) -> Finding:
    if machine.root == Path("/"):
        free, limit = host_memory.free_bytes(), host_memory.limit_bytes()
    else:
        lines = (machine.text("/proc/meminfo") or "").splitlines()
        values = {line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines if len(line.split()) > 1}
        free, limit = values.get("MemAvailable", 0), values.get("MemTotal", 0)
    detail = f"{console.human_bytes(free)} free of {console.human_bytes(limit)}"
    if free < MEMORY_WANTED:
        return Finding("warn", detail, "close other programs, or cut models with --layers and --experts")
    return Finding("pass", detail)


def check_disk(machine: Machine) -> Finding:
    free = machine.disk(Path.cwd()).free
    detail = f"{console.human_bytes(free)} free here"
    if free < DISK_WANTED:
        return Finding("warn", detail, "free some space, or write runs elsewhere with --out or --runs-dir")
    return Finding("pass", detail)


def check_shm(machine: Machine) -> Finding:
    folder = machine.at("/dev/shm")
    if not folder.is_dir():
        return Finding("skip", "no /dev/shm")
    total = machine.disk(folder).total
    detail = f"{console.human_bytes(total)} of shared memory"
    if total < SHM_WANTED:
        return Finding("warn", detail, "start the container with --shm-size=8g: processes exchange data there")
    return Finding("pass", detail)


def check_files(machine: Machine) -> Finding:
    if machine.nofile < NOFILE_WANTED and machine.is_neuron:
        return Finding("warn", f"{machine.nofile} open files allowed", "ulimit -n 65535")
    return Finding("pass", f"{machine.nofile} open files allowed")


def check_compiler(machine: Machine) -> Finding:
    found = next((path for name in ("c++", "g++", "clang++") if (path := machine.which(name))), None)
    if found is None:
        return Finding("warn", "no C++ compiler: --compile inductor cannot work", "sudo apt-get install g++")
    return Finding("pass", found.name)


def check_own_files(machine: Machine) -> Finding:
    from trnt import config
    from trnt.data.sources import SAMPLE_TEXT, SAMPLE_TOKENIZER

    if not any(SAMPLE_TEXT.glob("*.txt")) or not (SAMPLE_TOKENIZER / "tokenizer.json").is_file():
        return Finding("fail", "the bundled text or tokenizer is missing", "pip install --force-reinstall trnt")
    recipes = config.recipe_names()
    if not recipes:
        return Finding("fail", "the recipes are missing", "pip install --force-reinstall trnt")
    return Finding("pass", f"the bundled text, tokenizer and {len(recipes)} recipes are there")


def check_completion(machine: Machine) -> Finding:
    home = Path(machine.env.get("HOME", "/nonexistent"))
    names = (".bashrc", ".bash_completion", ".zshrc", ".config/fish/completions/trnt.fish")
    found = [name for name in names if "trnt" in _content(home / name)]
    if found:
        return Finding("pass", f"set up in {found[0]}")
    return Finding("skip", "not set up; 'trnt completion --help' says how")


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


CHECKS = (
    Check("system.os", "Operating system", check_os, "system, kernel, architecture; what TorchNeuron has wheels for"),
    Check("system.python", "Python", check_python, "its version, and on a Neuron machine whether it is a venv's"),
    Check("system.memory", "Memory", check_memory, "free memory within the container's limit; 8 GiB is comfortable"),
    Check("system.disk", "Disk", check_disk, "free space where runs are written; 2 B parameters take 24 GB"),
    Check(
        "system.shm", "Shared memory", check_shm, "the size of /dev/shm",
        "workers die with `Bus error` or `No space left on device` under /dev/shm",
    ),
    Check("system.files", "Open files", check_files, "the limit of open files", "`Too many open files`"),
    Check("system.compiler", "C++ compiler", check_compiler, "a compiler for `--compile inductor`"),
    Check("system.own_files", "trnt's own files", check_own_files, "the bundled text, tokenizer and recipes"),
    Check("system.completion", "Tab completion", check_completion, "the shells' start-up files"),
)  # fmt: skip
