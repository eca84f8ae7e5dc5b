"""Hugging Face folders as they come: whole ones are read, each way of being broken is named with its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trnt.checkpoint.hf import INDEX, is_hf, open_hf
from trnt.errors import TrntError

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Two shards and an index: a and b in the first, c in the second."""
    save_file({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2)}, tmp_path / A)
    save_file({"c": torch.arange(4, dtype=torch.bfloat16)}, tmp_path / B)
    write_index(tmp_path, {"a": A, "b": A, "c": B})
    return tmp_path


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 40}, "weight_map": weight_map}))


def test_every_tensor_of_every_shard_is_read(sharded: Path) -> None:
    with open_hf(sharded) as source:
        assert {name: info.shape for name, info in source.tensors.items()} == {"a": (2, 3), "b": (2,), "c": (4,)}
        for name, tensor in {**load_file(sharded / A), **load_file(sharded / B)}.items():
            assert torch.equal(source.tensor(name), tensor)
        part = bytearray(8)
        source.read("a", 2, memoryview(part))
        assert torch.frombuffer(part, dtype=torch.float32).tolist() == [2.0, 3.0]
        assert [file.name for file in source.files()] == [A, B]


def lose_file(folder: Path) -> None:
    (folder / B).unlink()


def lose_tensor(folder: Path) -> None:
    write_index(folder, {"a": A, "b": A, "c": B, "d": B})


def twice(folder: Path) -> None:
    save_file({"c": torch.ones(4), "a": torch.ones(1)}, folder / B)


def not_in_index(folder: Path) -> None:
    write_index(folder, {"a": A, "c": B})


def wrong_file(folder: Path) -> None:
    write_index(folder, {"a": A, "b": B, "c": B})


def extra_shard(folder: Path) -> None:
    save_file({"z": torch.ones(1)}, folder / "model-00003-of-00003.safetensors")


def outside(folder: Path) -> None:
    write_index(folder, {"a": A, "b": A, "c": f"../{folder.name}/{B}"})


def truncated(folder: Path) -> None:
    data = (folder / B).read_bytes()
    (folder / B).write_bytes(data[:-3])


def no_index(folder: Path) -> None:
    (folder / INDEX).write_text("{}")


BROKEN: dict[Callable[[Path], None], str] = {
    lose_file: f"{B}: the file is missing",
    lose_tensor: f"{B}: the index names d, which is not in it",
    twice: f"{B}: a is in {A} too",
    not_in_index: f"{A}: b is not in the index",
    wrong_file: f"{A}: the index says that b is in {B}",
    extra_shard: "model-00003-of-00003.safetensors: a shard that the index does not name",
    outside: "outside the folder",
    truncated: f"{B}: it is cut short",
    no_index: "is not an index",
}


@pytest.mark.parametrize("spoil", BROKEN, ids=lambda spoil: spoil.__name__)
def test_a_broken_folder_is_named_with_file_and_tensor(sharded: Path, spoil: Callable[[Path], None]) -> None:
    spoil(sharded)
    with pytest.raises(TrntError) as caught:
        open_hf(sharded)
    assert BROKEN[spoil] in caught.value.cause
    assert "\n" not in caught.value.cause
    assert caught.value.fix


def test_all_that_is_wrong_is_listed_at_once(sharded: Path) -> None:
    truncated(sharded)
    (sharded / A).unlink()
    with pytest.raises(TrntError, match=rf"{A}: the file is missing.*{B}: it is cut short"):
        open_hf(sharded)


def test_another_file_of_weights_is_left_out_and_said(sharded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"z": torch.ones(1)}, sharded / "consolidated.safetensors")
    assert set(open_hf(sharded).tensors) == {"a", "b", "c"}
    assert "consolidated.safetensors" in capsys.readouterr().err


def test_shards_that_are_links_are_followed(sharded: Path, tmp_path: Path) -> None:
    """As in the Hub's cache."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for name in (A, B, INDEX):
        (sharded / name).rename(blobs / name)
        (snapshot / name).symlink_to(blobs / name)
    assert is_hf(snapshot)
    assert set(open_hf(snapshot).tensors) == {"a", "b", "c"}


def test_old_files_are_opened_as_far_as_tensors_go(tmp_path: Path) -> None:
    weights = {"a": torch.randn(3, 4).T, "b": torch.ones(2, dtype=torch.bfloat16)}
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with open_hf(tmp_path) as source:
        assert torch.equal(source.tensor("a"), weights["a"])
        assert torch.equal(source.tensor("b"), weights["b"])


class Anything:
    pass


@pytest.mark.parametrize("content", [{"a": Anything()}, [1, 2], {"a": 3}], ids=["class", "list", "number"])
def test_old_files_that_hold_more_are_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(TrntError, match="is refused"):
        open_hf(tmp_path)
