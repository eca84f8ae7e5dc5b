"""Both forms of neuron-ls, and what is neither."""

from __future__ import annotations

import json

import pytest

from trnt.doctor.neuron_ls import parse

# As in the SDK's documents (2.32, and the older form without the instance), and the inferred form of 2.34.
OLD = """[
  {"instance_type": "trn2.48xlarge", "instance_id": "i-0123456789abcdef0",
   "neuron_device": 0, "bdf": "0000:cc:00.0", "cpu_affinity": "48-95,144-191", "numa_node": "1",
   "connected_to": [12, 3, 4, 1], "nc_count": 4, "logical_neuroncore_config": 2,
   "memory_size": 103079215104, "neuroncore_ids": [0, 1, 2, 3],
   "neuron_processes": [{"pid": 4711, "command": "python -m trnt train", "neuron_runtime_version": "2.35.30"}]},
  {"neuron_device": 15, "bdf": "f7:00.0", "connected_to": null, "nc_count": "4", "logical_neuroncore_config": 2,
   "memory_size": 103079215104, "neuroncore_ids": [60, 61, 62, 63], "neuron_processes": null}
]"""
NEW = """{"instance-type": "trn2.48xlarge", "logical-neuroncore-config": 2, "ultraserver": null, "tags": [],
 "neuron-devices": [{"neuron-device": 0, "nc-count": 4, "neuroncore-ids": [0, 1, 2, 3], "neuron-processes": []}]}"""


def test_the_list() -> None:
    found = parse(OLD)
    assert (found.instance_type, found.lnc, found.cores) == ("trn2.48xlarge", 2, 8)
    assert [device.index for device in found.devices] == [0, 15]
    assert found.devices[0].processes[0].pid == 4711
    assert found.devices[1].processes == ()


def test_the_object() -> None:
    found = parse(NEW)
    assert (found.instance_type, found.lnc, found.cores) == ("trn2.48xlarge", 2, 4)


def test_a_count_that_is_missing_follows_from_the_ids() -> None:
    assert parse('[{"neuron_device": 1, "neuroncore_ids": [4, 5]}]').devices[0].cores == 2
    assert parse("[]").devices == ()
    assert parse("{}").devices == ()


@pytest.mark.parametrize("text", ["", "hello", "3", '"x"', "[1, 2]", json.dumps([["a"]])])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)
