"""`trnt doctor` as a user types it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

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
    assert "fix: run on a Trn instance" in done.stdout
    assert done.stdout.strip().splitlines()[-1].startswith("not ready")
    assert trnt("doctor", "--require", "cpu").returncode == 0


def test_the_list_runs_nothing(trnt: Run) -> None:
    done = trnt("doctor", "--list")
    assert done.returncode == 0
    assert "device.rate" in done.stdout
    assert "GFLOP" not in done.stdout
