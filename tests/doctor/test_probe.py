"""The probe's own answers; device programs are asked of the CPU, which has no Neuron device to offer here."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from trnt.doctor.machine import Machine
from trnt.doctor.probe import look


def test_the_probe_tells_what_torch_has() -> None:
    answer = look()
    assert answer["devices"]["cpu"] is True
    assert answer["threads"] >= 1
    assert answer["cpu_flops"] > 1e9


@pytest.mark.slow
@pytest.mark.parametrize(("task", "group"), [("device", ""), ("compile", ""), ("allreduce", "gloo")])
def test_device_programs_are_right_on_a_device_that_works(task: str, group: str) -> None:
    env = {**os.environ, "TRNT_DOCTOR_DEVICE": "cpu", "TRNT_DOCTOR_BACKEND": "eager", "TRNT_DOCTOR_GROUP": group}
    command = [sys.executable, "-m", "trnt.doctor.probe", task]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["right"] is True
    assert answer["seconds"] > 0


def test_a_task_that_cannot_be_is_a_text() -> None:
    answer = Machine().ask("device")  # there is no Neuron device here
    assert isinstance(answer, str)
    assert "\n" not in answer
