"""The probe's own answer."""

from __future__ import annotations

from trnt.doctor.probe import look


def test_the_probe_tells_what_torch_has() -> None:
    answer = look()
    assert answer["devices"]["cpu"] is True
    assert answer["threads"] >= 1
    assert answer["cpu_flops"] > 1e9
