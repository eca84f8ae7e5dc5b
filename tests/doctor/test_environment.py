"""Variables, file systems and the Hub, case by case."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.fake import Fake
from trnt.doctor import environment
from trnt.doctor.facts import VARIABLES


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_each_variable_is_found_and_can_be_unset(tmp_path: Path, variable: environment.Variable) -> None:
    fake = Fake(tmp_path)
    fake.env[variable.name] = variable.values[0] if variable.values else "7"
    finding = environment.check_variables(fake.machine())
    assert finding.status == variable.status
    assert variable.why in finding.detail
    assert finding.fix == f"unset {variable.name}"
    if variable.values:
        fake.env[variable.name] = "5"
        assert environment.check_variables(fake.machine()).status == "pass"


def test_the_longest_mount_counts(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.write("proc/mounts", "a / ext4 rw 0 0\nb /fsx lustre rw 0 0\nc /fsx/local xfs rw 0 0\n")
    machine = fake.machine()
    found = [environment.file_system(machine, path) for path in ("/tmp/x", "/fsx/x", "/fsx/local/x", "/fsxy")]
    assert found == ["ext4", "lustre", "xfs", "ext4"]


def test_a_token_is_told_and_not_shown(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    assert environment.check_token(fake.machine()).status == "skip"
    fake.write("home/.cache/huggingface/token", "hf_secret")
    finding = environment.check_token(fake.machine())
    assert finding.status == "pass"
    assert "hf_secret" not in finding.detail


def test_workers_that_a_launcher_starts_are_counted(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.env |= {"NEURON_RT_NUM_CORES": "64", "LOCAL_WORLD_SIZE": "32"}
    assert "32 workers" in environment.check_num_cores(fake.machine()).detail
    fake.env["LOCAL_WORLD_SIZE"] = "64"
    assert environment.check_num_cores(fake.machine()).status == "pass"
