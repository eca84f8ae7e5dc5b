"""DCP folders read as streams, whoever wrote them, and known to be whole or not."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from trnt.checkpoint.dcp import complete, open_dcp
from trnt.errors import TrntError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = {
        "tok_embeddings.weight": torch.randn(7, 3),
        "layers.0.moe.x": torch.randn(2, 5, 4).bfloat16(),
        "norm.weight": torch.tensor(1.5),
        "layers.0.turned": torch.randn(4, 6).T,
        "optimizer.state.layers.0.moe.x.exp_avg": torch.zeros(2),
        "train_state": {"step": 3},
    }
    dcp.save(state, checkpoint_id=tmp_path / "step-3", no_dist=True)
    torch.save(state, tmp_path / "state.pt")
    return tmp_path / "step-3"


def test_tensors_come_back_as_saved(folder: Path) -> None:
    state = torch.load(folder.parent / "state.pt")
    opened = open_dcp(folder)
    model = ["layers.0.moe.x", "layers.0.turned", "norm.weight", "tok_embeddings.weight"]
    assert sorted(opened.model_names()) == model
    assert opened.shapes()["layers.0.moe.x"] == (2, 5, 4)
    for name in model:
        assert torch.equal(opened.tensor(name), state[name])
        assert opened.tensor(name).dtype == state[name].dtype
    part = bytearray(4 * 2)
    opened.read("layers.0.moe.x", 18, memoryview(part))
    assert torch.equal(torch.frombuffer(part, dtype=torch.bfloat16), state["layers.0.moe.x"].view(-1)[18:22])
    assert set(opened.blobs()) == {"train_state.step"} or set(opened.blobs()) == {"train_state"}


def cut_in_boxes(folder: Path, name: str, whole: torch.Tensor, boxes: list[tuple[slice, slice]]) -> None:
    """Rewrite a folder so that a tensor lies in boxes, as tensor parallelism of two dimensions would leave it."""
    state = {f"part{i}": whole[box].contiguous() for i, box in enumerate(boxes)}
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    metadata = dcp.FileSystemReader(folder).read_metadata()
    entry = replace(metadata.state_dict_metadata["part0"], size=whole.shape, chunks=[])
    stored = {}
    for index, info in metadata.storage_data.items():
        box = boxes[int(index.fqn.removeprefix("part"))]
        begin = torch.Size([part.start for part in box])
        entry.chunks.append(ChunkStorageMetadata(begin, torch.Size([part.stop - part.start for part in box])))
        stored[replace(index, fqn=name, offset=begin)] = info
    metadata.state_dict_metadata, metadata.storage_data, metadata.planner_data = {name: entry}, stored, None
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize(
    "boxes",
    [
        [(slice(0, 4), slice(0, 5)), (slice(4, 9), slice(0, 5))],
        [(slice(0, 9), slice(0, 2)), (slice(0, 9), slice(2, 5))],
        [(slice(i, j), slice(k, m)) for i, j in ((0, 4), (4, 9)) for k, m in ((0, 1), (1, 5))],
    ],
    ids=["rows", "columns", "both"],
)
def test_any_sharding_is_put_together(tmp_path: Path, boxes: list[tuple[slice, slice]]) -> None:
    whole = torch.arange(45.0).view(9, 5)
    cut_in_boxes(tmp_path / "c", "layers.0.w", whole, boxes)
    opened = open_dcp(tmp_path / "c")
    assert torch.equal(opened.tensor("layers.0.w"), whole)
    for first, count in ((0, 45), (3, 11), (22, 1), (40, 5)):
        part = bytearray(4 * count)
        opened.read("layers.0.w", first, memoryview(part))
        assert torch.frombuffer(part, dtype=torch.float32).tolist() == list(range(first, first + count))


def test_whole_folders_are_complete_and_others_say_why(folder: Path) -> None:
    assert complete(folder) is None
    data = next(folder.glob("*.distcp"))
    content = data.read_bytes()
    data.write_bytes(content[:-10])
    assert "bytes" in (complete(folder) or "")
    data.unlink()
    assert "missing" in (complete(folder) or "")
    data.write_bytes(content)
    (folder / ".metadata").write_bytes(b"junk")
    assert "cannot read" in (complete(folder) or "")
    (folder / ".metadata").unlink()
    assert "no .metadata" in (complete(folder) or "")


def test_a_file_outside_the_folder_is_refused(folder: Path) -> None:
    metadata = dcp.FileSystemReader(folder).read_metadata()
    for info in metadata.storage_data.values():
        info.relative_path = f"../{folder.name}/{info.relative_path}"
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(TrntError, match="outside the folder"):
        open_dcp(folder)


def test_what_is_no_checkpoint_is_one_line(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(TrntError, match="no checkpoint"):
        open_dcp(tmp_path)
    data = next(folder.glob("*.distcp"))
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(TrntError, match=r"distcp at byte \d+"):
        open_dcp(folder).tensor("tok_embeddings.weight")
