"""`trnt doctor` as a user types it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_this_machine_is_ready_for_cpu_runs(trnt: Run) -> None:
    done = trnt("doctor", "--json")
    assert done.returncode == 0, done.stdout
    answer = json.loads(done.stdout)
    assert next(iter(answer)) == "schema_version"
    assert answer["ok"] is True
    assert {
        "system.python",
        "packages.torch",
        "packages.torchtitan",
        "device.kind",
        "system.memory",
        "system.disk",
    } <= {check["id"] for check in answer["checks"]}
    for check in answer["checks"]:
        assert {"id", "group", "status", "detail", "fix", "seconds"} <= check.keys()


def test_a_required_device_that_is_missing_fails_with_its_fix(trnt: Run) -> None:
    done = trnt("doctor", "--require", "neuron")
    assert done.returncode == 1
    assert "✗ Device" in done.stdout
    assert "fix: start a Trn2 or Trn3 instance" in done.stdout
    assert done.stdout.strip().splitlines()[-1].startswith("not ready")
    assert trnt("doctor", "--require", "cpu").returncode == 0


def test_the_list_runs_nothing(trnt: Run) -> None:
    done = trnt("doctor", "--list")
    assert done.returncode == 0
    assert "device.rate" in done.stdout
    assert "GFLOP" not in done.stdout


def test_a_part_is_asked_for_by_group_or_id(trnt: Run) -> None:
    done = trnt("doctor", "--only", "packages", "--only", "system.python", "--json")
    assert done.returncode == 0, done.stderr
    assert {check["group"] for check in json.loads(done.stdout)["checks"]} == {"packages", "system"}
    wrong = trnt("doctor", "--only", "package")
    assert wrong.returncode == 2
    assert "did you mean 'packages'" in wrong.stderr


def test_fast_starts_no_torch_and_asks_no_network(trnt: Run) -> None:
    done = trnt("doctor", "--fast", "--json")
    assert done.returncode == 0, done.stderr
    found = {check["id"] for check in json.loads(done.stdout)["checks"]}
    assert "packages.torch" in found
    assert not {"device.torch", "environment.hub"} & found


def test_a_report_is_written_once(trnt: Run, tmp_path: Path) -> None:
    done = trnt("doctor", "--fast", "--report", "report.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert {"checks", "packages", "variables"} <= report.keys()
    again = trnt("doctor", "--fast", "--report", "report.json", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr
