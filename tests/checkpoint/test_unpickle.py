"""`.metadata` is read without running what a pickle could run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from trnt.checkpoint.unpickle import read_metadata
from trnt.errors import TrntError


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.path),)


def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(3, dtype=torch.bfloat16), "n": 5}, checkpoint_id=tmp_path / "c", no_dist=True)
    found = read_metadata(tmp_path / "c" / ".metadata")
    assert found.state_dict_metadata["a"].properties.dtype == torch.bfloat16
    assert {index.fqn for index in found.storage_data} == {"a", "n"}


def test_a_pickle_that_runs_something_is_refused_unrun(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises(TrntError, match=r"posix\.mkdir.*refused"):
        read_metadata(tmp_path / ".metadata")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04garbage", pickle.dumps(torch.Size([1]))])
def test_what_is_no_metadata_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(TrntError) as caught:
        read_metadata(tmp_path / ".metadata")
    assert "\n" not in caught.value.cause
