"""Versions in ranges, and parts of one SDK."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.fake import Fake
from trnt.doctor import packages


@pytest.mark.parametrize(
    ("found", "status"),
    [(None, "fail"), ("2.12.1", "fail"), ("2.13.0+cpu", "pass"), ("2.14.1", "pass"), ("2.15.0", "fail")],
)
def test_versions(tmp_path: Path, found: str | None, status: str) -> None:
    fake = Fake(tmp_path)
    fake.unpackage("torch")
    if found is not None:
        fake.package("torch", found)
    finding = packages.package_check("torch", (2, 13), (2, 15), "torch>=2.13,<2.15")(fake.machine())
    assert finding.status == status
    assert bool(finding.fix) == (status == "fail")


def test_parts_newer_than_the_table_are_right(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    assert packages.check_sdk(fake.machine()).detail == "SDK 2.33"
    fake.tool("dpkg-query", "printf 9.9.9.9")
    fake.write("sys/module/neuron/version", "9.9.9.9")
    for name in ("nki", "neuronx-cc"):
        fake.package(name, "9.9.9")
    finding = packages.check_sdk(fake.machine())
    assert (finding.status, finding.detail.startswith("newer than SDK 2.33")) == ("pass", True)


def test_an_entry_point_is_asked_for(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    assert packages.check_loading(fake.machine()).status == "pass"
    next(fake.site.glob("torch_neuronx-*/entry_points.txt")).unlink()
    assert packages.check_loading(fake.machine()).status == "warn"
