"""Shards split where they should, and an index that says the truth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from trnt.checkpoint.hf import plan_shards, write_weights


def test_shards_are_split_at_the_limit_in_order() -> None:
    assert plan_shards({"a": 4, "b": 4, "c": 9, "d": 1, "e": 8}, 8) == [["a", "b"], ["c"], ["d"], ["e"]]
    assert plan_shards({"a": 4}, 8) == [["a"]]


@pytest.mark.parametrize("limit", [10**9, 64])
def test_files_and_index_say_the_truth(tmp_path: Path, limit: int) -> None:
    tensors = {f"t{i}": torch.full((4, 2), float(i)) for i in range(5)}
    sizes = dict.fromkeys(tensors, 32)
    assert write_weights(tmp_path, iter(tensors.items()), sizes, limit=limit) == 160
    files = sorted(tmp_path.glob("*.safetensors"))
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in files)
    found = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}
            found |= {name: (opened.get_tensor(name), file.name) for name in opened.keys()}  # noqa: SIM118
    assert all(torch.equal(found[name][0], tensor) for name, tensor in tensors.items())
    index = tmp_path / "model.safetensors.index.json"
    if limit > 160:
        assert [f.name for f in files] == ["model.safetensors"]
        assert not index.exists()
    else:
        assert [f.name for f in files] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
        said = json.loads(index.read_text())
        assert said["metadata"]["total_size"] == 160
        assert said["weight_map"] == {name: file for name, (_, file) in found.items()}
