"""The doctor's data holds together, and messages find their fix."""

from __future__ import annotations

import pytest

from trnt.doctor import facts


def test_tables_hold_together() -> None:
    assert facts.NEWEST in facts.SDKS
    for row in facts.SDKS.values():
        assert set(row) <= set(facts.SDKS[facts.NEWEST])
        assert all(facts.numbers(version) for version in row.values())
    for instance in facts.INSTANCES.values():
        assert instance.cores_lnc1 == 2 * instance.cores_lnc2 or not instance.cores_lnc2
        assert instance.cores_lnc1 % instance.chips == 0
    assert set(facts.SUPPORTED) <= set(facts.PCI.values())
    assert len({variable.name for variable in facts.VARIABLES}) == len(facts.VARIABLES)


@pytest.mark.parametrize(
    ("text", "found"),
    [("2.13.0+cpu", (2, 13, 0)), ("2.14.3.0.1", (2, 14, 3, 0, 1)), ("1.0.post1", (1, 0, 1)), ("x", ())],
)
def test_versions_as_numbers(text: str, found: tuple[int, ...]) -> None:
    assert facts.numbers(text) == found


def test_a_message_finds_its_fix() -> None:
    assert "modprobe" in facts.fix_for("FATA[0000] failed to discover Neuron devices", "other")
    assert "aws-neuronx-collectives" in facts.fix_for("Error opening libnccom.so", "other")
    assert facts.fix_for("something new", "other") == "other"
