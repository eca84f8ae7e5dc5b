"""Checks of the machine itself, where the made-up machines do not reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.fake import Fake
from trnt.doctor import system
from trnt.doctor.machine import Machine


def test_this_machine_is_measured() -> None:
    assert " free of " in system.check_memory(Machine()).detail
    assert system.check_own_files(Machine()).status == "pass"


def test_another_system_is_a_warning() -> None:
    finding = system.check_os(Machine(system="Darwin"))
    assert finding.status == "warn"
    assert "Linux" in finding.fix


@pytest.mark.parametrize("name", [".bashrc", ".config/fish/completions/trnt.fish"])
def test_completion_is_found_where_it_was_set_up(tmp_path: Path, name: str) -> None:
    fake = Fake(tmp_path)
    assert system.check_completion(fake.machine()).status == "skip"
    fake.write(f"home/{name}", 'eval "$(trnt completion bash)"')
    assert name in system.check_completion(fake.machine()).detail


def test_no_compiler_is_a_warning(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.env["PATH"] = str(fake.bin)
    assert system.check_compiler(fake.machine()).fix == "sudo apt-get install g++"
    fake.tool("clang++", "true")
    assert system.check_compiler(fake.machine()).detail == "clang++"
