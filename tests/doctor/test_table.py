"""A row's group follows from its id."""

from __future__ import annotations

from trnt.doctor.machine import Finding
from trnt.doctor.table import NO_DEVICE, Check


def test_the_group_is_the_first_part_of_the_id() -> None:
    check = Check("driver.pci", "Chips", lambda machine: Finding("pass", ""), "looks")
    assert check.group == "driver"
    assert (NO_DEVICE.status, NO_DEVICE.fix) == ("skip", "")
