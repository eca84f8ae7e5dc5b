"""DCP folders read one tensor at a time, and known to be whole or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from trnt.checkpoint.dcp import complete, open_dcp
from trnt.errors import TrntError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = {
        "tok_embeddings.weight": torch.randn(7, 3),
        "layers.0.moe.x": torch.randn(2, 5, 4).bfloat16(),
        "optimizer.state.layers.0.moe.x.exp_avg": torch.zeros(2),
        "train_state": {"step": 3},
    }
    dcp.save(state, checkpoint_id=tmp_path / "step-3", no_dist=True)
    return tmp_path / "step-3"


def test_tensors_come_back_as_saved(folder: Path) -> None:
    opened = open_dcp(folder)
    assert sorted(opened.model_names()) == ["layers.0.moe.x", "tok_embeddings.weight"]
    assert opened.shapes()["layers.0.moe.x"] == (2, 5, 4)
    assert opened.read("layers.0.moe.x").dtype == torch.bfloat16
    assert opened.read("tok_embeddings.weight").shape == (7, 3)


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


def test_what_is_no_checkpoint_is_one_line(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(TrntError, match="no checkpoint"):
        open_dcp(tmp_path)
    next(folder.glob("*.distcp")).write_bytes(b"short")
    with pytest.raises(TrntError, match="cannot read tok_embeddings"):
        open_dcp(folder).read("tok_embeddings.weight")
