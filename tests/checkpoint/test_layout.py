"""Planned to the byte: shards where they should be, chunks that cover, metadata that torch reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from trnt.checkpoint import layout
from trnt.checkpoint.layout import Part, Target


def target(name: str, *shape: int, dtype: str = "F32") -> Target:
    count = torch.Size(shape).numel()
    return Target(name, dtype, shape, (Part(name, 0, count),))


def test_shards_are_split_at_the_limit_in_order() -> None:
    assert layout.plan_shards({"a": 4, "b": 4, "c": 9, "d": 1, "e": 8}, 8) == [["a", "b"], ["c"], ["d"], ["e"]]
    assert layout.plan_shards({"a": 4}, 8) == [["a"]]


@pytest.mark.parametrize("limit", [10**9, 64])
def test_the_index_counts_the_tensors_bytes(tmp_path: Path, limit: int) -> None:
    made = layout.hf_layout([target(f"t{i}", 4, 2) for i in range(5)], limit)
    made.finish(tmp_path)
    assert made.data_bytes == 160
    if limit > 160:
        assert list(made.files) == ["model.safetensors"]
        assert list(tmp_path.iterdir()) == []
        return
    assert list(made.files) == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    said = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert said["metadata"]["total_size"] == 160
    assert said["weight_map"] == {item.target.name: item.file for item in made.items}


def test_rows_of_a_target_take_their_stretch_of_each_part() -> None:
    stack = Target("s", "F32", (3, 2, 2), (Part("a", 8, 4), Part("b", 0, 4), Part("c", 4, 4)))
    assert stack.rows(1, 2) == Target("s", "F32", (2, 2, 2), (Part("b", 0, 4), Part("c", 4, 4)))
    flat = Target("f", "F32", (4, 3), (Part("a", 100, 12),))
    assert flat.rows(1, 2).parts == (Part("a", 103, 6),)


def test_large_tensors_are_cut_in_chunks_that_cover_them() -> None:
    found = list(layout.chunks(target("x", 10, 4), 50))
    assert [(first, rows.shape) for first, rows in found] == [(0, (3, 4)), (3, (3, 4)), (6, (3, 4)), (9, (1, 4))]
    assert [first for first, _ in layout.chunks(target("row", 1, 400), 50)] == [0]
    assert [first for first, _ in layout.chunks(target("wide", 2, 400), 50)] == [0, 1]
    assert [rows.shape for _, rows in layout.chunks(target("scalar"), 1)] == [()]


def test_torch_loads_what_was_laid_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CHUNK_BYTES", 64)
    held = {
        "a": torch.randn(7, 5),
        "b": torch.arange(3, dtype=torch.bfloat16),
        "c": torch.tensor(2.5),
        "d": torch.empty(0, 3),
    }
    codes = {"a": "F32", "b": "BF16", "c": "F32", "d": "F32"}
    made = layout.dcp_layout([target(n, *t.shape, dtype=codes[n]) for n, t in held.items()], 4000)
    assert len(made.files) > 2
    lengths = dict.fromkeys(made.files, 0)
    for item in made.items:
        assert item.offset == lengths[item.file]  # end to end, nothing between
        lengths[item.file] += len(item.before) + item.target.nbytes + len(item.after)
    assert lengths == dict(made.files)
    assert all(size <= 4000 for size in lengths.values())
    contents = {file: bytearray(size) for file, size in made.files.items()}
    for item in made.items:
        rows = held[item.target.name]
        rows = rows[item.first : item.first + item.target.shape[0]] if rows.dim() else rows
        data = rows.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if rows.numel() else b""
        whole = item.before + data + item.after
        contents[item.file][item.offset : item.offset + len(whole)] = whole
    for file, content in contents.items():
        (tmp_path / file).write_bytes(content)
    made.finish(tmp_path)
    loaded = {name: torch.full_like(tensor, 9) for name, tensor in held.items()}
    dcp.load(loaded, checkpoint_id=tmp_path, no_dist=True)
    assert all(torch.equal(loaded[name], held[name]) for name in held)
