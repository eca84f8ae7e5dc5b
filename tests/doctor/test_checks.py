"""Every probe answers with a finding, whatever the machine does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trnt.doctor import checks
from trnt.doctor.checks import CHECKS, Finding, Machine

GOOD = {"torch": "2.13.0", "import_s": 2.0, "threads": 2, "devices": {"cpu": True}, "cpu_flops": 1e11}


def python_that(tmp_path: Path, body: str) -> str:
    """A program that stands in for Python and does `body`."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("kill -SEGV $$", "died with SIGSEGV"),
        ("echo 'ModuleNotFoundError: No module named torch' >&2; exit 1", "No module named torch"),
        ("echo garbage", "printed nothing"),
        ("echo '[1]'", "something else"),
        ("exit 3", "printed nothing"),
    ],
)
def test_a_torch_that_does_not_work_is_a_finding(tmp_path: Path, body: str, said: str) -> None:
    machine = Machine(python=python_that(tmp_path, body))
    finding = checks.check_torch(machine)
    assert finding.status == "fail"
    assert said in finding.detail
    assert finding.fix.startswith("pip install")
    assert checks.check_rate(machine).status == "skip"


def test_a_probe_that_hangs_is_stopped(tmp_path: Path) -> None:
    assert "no answer within" in checks.ask_torch(python_that(tmp_path, "exec sleep 30"), timeout_s=0.5)
    assert "cannot start" in checks.ask_torch(str(tmp_path / "nothing"))


def test_the_real_probe_answers() -> None:
    answer = checks.ask_torch(sys.executable)
    assert isinstance(answer, dict), answer
    assert answer["devices"]["cpu"] is True
    assert answer["cpu_flops"] > 1e9


@pytest.mark.parametrize(
    ("require", "devices", "nodes", "status", "said"),
    [
        (None, {"cpu": True}, 0, "pass", "no Trainium here: CPU runs are ready"),
        (None, {"cpu": True, "neuron": True}, 16, "pass", "Trainium: 16 device files"),
        (None, {"cpu": True}, 16, "warn", "torch does not know"),
        (None, {"cpu": True, "cuda": True}, 0, "pass", "CUDA"),
        ("neuron", {"cpu": True}, 0, "fail", "no neuron device"),
        ("cuda", {"cpu": True}, 0, "fail", "no cuda device"),
        ("cpu", {"cpu": True}, 0, "pass", "CPU runs are ready"),
    ],
)
def test_the_device(
    tmp_path: Path, require: str | None, devices: dict[str, bool], nodes: int, status: str, said: str
) -> None:
    for number in range(nodes):
        (tmp_path / f"neuron{number}").touch()
    machine = Machine(require=require, dev=tmp_path)
    machine._torch = {**GOOD, "devices": devices}
    finding = checks.check_device(machine)
    assert finding.status == status
    assert said in finding.detail
    assert bool(finding.fix) == (status in ("warn", "fail"))


@pytest.mark.parametrize(
    ("found", "status"),
    [(None, "fail"), ("2.12.1", "fail"), ("2.13.0+cpu", "pass"), ("2.14.1", "pass"), ("2.15.0", "fail")],
)
def test_versions(monkeypatch: pytest.MonkeyPatch, found: str | None, status: str) -> None:
    monkeypatch.setattr(checks, "version", lambda name: found)
    finding = checks.package_check("torch", (2, 13), (2, 15), "torch>=2.13,<2.15")(Machine())
    assert finding.status == status
    assert bool(finding.fix) == (status == "fail")


def test_little_memory_and_disk_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.device, "memory_free_bytes", lambda: 1 << 30)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: type("U", (), {"free": 1 << 30})())
    for check in (checks.check_memory, checks.check_disk):
        finding = check(Machine())
        assert finding.status == "warn"
        assert finding.fix


def test_the_table_is_well_formed() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS) >= 10
    for check in CHECKS:
        assert check.id.startswith(check.group + ".")
        assert isinstance(check.probe(Machine()), Finding)
