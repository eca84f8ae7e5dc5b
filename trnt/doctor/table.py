"""One row of the doctor's table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trnt.doctor.machine import Finding, Machine

NO_DEVICE = Finding("skip", "no Neuron device here")


@dataclass(frozen=True)
class Check:
    """id: `group.name`. looks: what it looks at, for the page. needs: checks that must not have failed before.

    neuron: only asked on a machine that has anything of Neuron. slow: starts torch or a device program, or waits for a
    network; `--fast` leaves it out.
    """

    id: str
    title: str
    probe: Callable[[Machine], Finding]
    looks: str
    symptom: str = ""
    """What a user sees when it fails, in the page."""
    needs: tuple[str, ...] = ()
    neuron: bool = False
    slow: bool = False

    @property
    def group(self) -> str:
        return self.id.partition(".")[0]
