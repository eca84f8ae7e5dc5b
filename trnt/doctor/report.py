"""A bundle to attach to a bug report: findings, versions, variables, neuron-ls; nothing that tells who or where."""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trnt import __version__, console
from trnt.doctor.machine import Machine
from trnt.doctor.run import Result
from trnt.errors import TrntError, UsageError

SHOWN = ("NEURON_", "TORCH", "NKI_", "FI_", "TRNT_", "HF_HUB_OFFLINE", "LOCAL_", "WORLD_SIZE", "OMP_", "CUDA_VISIBLE")
SECRET = re.compile(r"(token|secret|password|key|credential)", re.IGNORECASE)
PATTERNS = (
    (re.compile(r"\bi-[0-9a-f]{8,17}\b"), "<instance>"),
    (re.compile(r"\bhf_[A-Za-z0-9]{10,}\b"), "<token>"),
    (re.compile(r"://[^/@\s]+@"), "://<user>@"),
    (re.compile(r"/(home|Users)/[^/\s\"']+"), r"/\1/<user>"),
)


def names_to_hide(machine: Machine) -> list[str]:
    """User and host names of this machine, longest first."""
    found = {machine.env.get("USER", ""), machine.env.get("HOSTNAME", ""), socket.gethostname()}
    with contextlib.suppress(OSError, KeyError):
        found.add(getpass.getuser())
    found |= {name.partition(".")[0] for name in found}
    return sorted((name for name in found if len(name) > 2 and name != "root"), key=len, reverse=True)


def redact(text: str, hidden: Iterable[str]) -> str:
    """Text without user, host and instance names and tokens."""
    for name in hidden:
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<name>", text)
    for pattern, instead in PATTERNS:
        text = pattern.sub(instead, text)
    return text


def bundle(machine: Machine, results: Sequence[Result]) -> dict[str, Any]:
    """Everything that helps to understand the findings."""
    shown = {name: value for name, value in sorted(machine.env.items()) if name.startswith(SHOWN)}
    listing = machine.listing if machine.is_neuron else "no Neuron device here"
    return {
        "schema_version": console.SCHEMA_VERSION,
        "trnt": __version__,
        "checks": [result.to_dict() for result in results],
        "packages": {name: package.version for name, package in sorted(machine.packages.items())},
        "variables": {name: "<hidden>" if SECRET.search(name) else value for name, value in shown.items()},
        "neuron_ls": listing if isinstance(listing, str) else repr(listing),
    }


def write(machine: Machine, results: Sequence[Result], path: Path) -> None:
    """Write the bundle. Raises UsageError when the file exists, TrntError when it cannot be written."""
    if path.exists():
        raise UsageError(f"{path} exists already", "name another file")
    text = redact(json.dumps(bundle(machine, results), indent=2, ensure_ascii=False), names_to_hide(machine))
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise TrntError(f"cannot write {path}: {error.strerror}", "name another file") from None
