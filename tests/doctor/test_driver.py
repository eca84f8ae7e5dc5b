"""Where the driver's checks look, and what LNC is asked for."""

from __future__ import annotations

from pathlib import Path

from tests.doctor.fake import Fake
from trnt.doctor import driver


def test_lnc_is_read_from_the_environment_then_from_the_machine(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    assert driver.lnc_of(fake.machine()) == (None, "")
    fake.write("opt/aws/neuron/logical_nc_config", "NEURON_LOGICAL_NC_CONFIG=1\n")
    assert driver.lnc_of(fake.machine()) == ("1", "/opt/aws/neuron/logical_nc_config")
    fake.env["NEURON_RT_VIRTUAL_CORE_SIZE"] = "2"
    assert driver.lnc_of(fake.machine()) == ("2", "NEURON_RT_VIRTUAL_CORE_SIZE")
    fake.env["NEURON_LOGICAL_NC_CONFIG"] = "1"
    assert driver.lnc_of(fake.machine()) == ("1", "NEURON_LOGICAL_NC_CONFIG")


def test_libraries_are_found_on_the_library_path_too(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.remove("opt/aws/neuron/lib")
    assert driver.library(fake.machine(), "libnrt") is None
    fake.write("elsewhere/libnrt.so.1", "")
    fake.env["LD_LIBRARY_PATH"] = f"/nowhere:{tmp_path}/elsewhere"
    assert driver.library(fake.machine(), "libnrt") == tmp_path / "elsewhere" / "libnrt.so.1"


def test_health_counters_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    assert driver.check_health(fake.machine()).status == "skip"
    fake.write("sys/devices/virtual/neuron_device/neuron0/stats/hardware/mem_ecc_uncorrected", "0")
    assert driver.check_health(fake.machine()).status == "pass"
