"""The bundle for a bug report tells what is wrong, not who or where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.doctor.fake import Fake
from trnt.doctor import report
from trnt.doctor.run import examine
from trnt.errors import TrntError, UsageError


def test_names_and_tokens_are_not_in_it(tmp_path: Path) -> None:
    fake = Fake(tmp_path / "machine")
    fake.env |= {
        "USER": "rosalind", "HOSTNAME": "trainer7.example.org", "HF_TOKEN": "hf_abcdefghijklmnop",
        "NEURON_RT_LOG_LOCATION": "/home/rosalind/logs/trainer7", "TRNT_TOKEN": "something",
        "HTTPS_PROXY": "http://me:pass@proxy:1", "NEURON_RT_NUM_CORES": "64",
    }  # fmt: skip
    fake.env["NEURON_CC_FLAGS"] = "--x hf_abcdefghijklmnop"
    machine = fake.machine()
    path = tmp_path / "report.json"
    report.write(machine, examine(machine), path)
    text = path.read_text()
    for secret in ("rosalind", "trainer7", "hf_abc", "something", "i-0123456789abcdef0", "me:pass"):
        assert secret not in text, secret
    found = json.loads(text)
    assert found["variables"]["NEURON_RT_NUM_CORES"] == "64"
    assert found["packages"]["torch-neuronx"] == "2.14.3.0.1"
    assert {check["id"] for check in found["checks"]} >= {"driver.pci", "device.kind"}


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    fake = Fake(tmp_path / "machine")
    (tmp_path / "there").write_text("x")
    with pytest.raises(UsageError, match="exists already"):
        report.write(fake.machine(), [], tmp_path / "there")
    with pytest.raises(TrntError, match="cannot write"):
        report.write(fake.machine(), [], tmp_path / "nowhere" / "file")
