"""Reading what `neuron-ls` prints, in the list form up to SDK 2.33 and in the object form from 2.34 on.

Key names of the object form are inferred: unknown ones are ignored, and the first list of devices counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Process:
    """Somebody on a device."""

    pid: int
    command: str


@dataclass(frozen=True)
class NeuronDevice:
    """One chip, with the logical cores that are visible."""

    index: int
    cores: int
    core_ids: tuple[int, ...]
    processes: tuple[Process, ...]


@dataclass(frozen=True)
class Listing:
    """The whole machine."""

    instance_type: str | None
    lnc: int | None
    devices: tuple[NeuronDevice, ...]

    @property
    def cores(self) -> int:
        return sum(device.cores for device in self.devices)


def parse(text: str) -> Listing:
    """Raises ValueError when the text is not what neuron-ls prints as JSON."""
    found = _normal(json.loads(text))
    top: dict[str, Any] = {}
    if isinstance(found, dict):
        top = found
        lists = [value for value in found.values() if isinstance(value, list) and _devices(value)]
        found = lists[0] if lists else []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError("neither a list of devices nor an object that holds one")
    first = found[0] if found else {}
    lnc = first.get("logical_neuroncore_config", top.get("logical_neuroncore_config"))
    kind = first.get("instance_type", top.get("instance_type"))
    return Listing(kind, None if lnc is None else int(lnc), tuple(_device(n, one) for n, one in enumerate(found)))


def _normal(value: Any) -> Any:
    """Keys with underscores, whichever way they are written."""
    if isinstance(value, dict):
        return {key.replace("-", "_"): _normal(item) for key, item in value.items()}
    return [_normal(item) for item in value] if isinstance(value, list) else value


def _devices(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(one, dict) and ("neuron_device" in one or "nc_count" in one) for one in value)


def _device(number: int, one: dict[str, Any]) -> NeuronDevice:
    ids = tuple(int(core) for core in one.get("neuroncore_ids") or [])
    processes = tuple(
        Process(int(process.get("pid", 0)), str(process.get("command") or ""))
        for process in one.get("neuron_processes") or []
    )
    return NeuronDevice(int(one.get("neuron_device", number)), int(one.get("nc_count") or len(ids)), ids, processes)
