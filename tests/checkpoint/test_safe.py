"""safetensors as bytes: read and written as the library does, and every broken file named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trnt.checkpoint.dtypes import code_of
from trnt.checkpoint.safe import BadFile, plan_file, read_at, read_header

TENSORS = {
    "b": torch.arange(6, dtype=torch.float32).view(2, 3),
    "a": torch.arange(5, dtype=torch.bfloat16),
    "scalar": torch.tensor(3.0),
    "none": torch.empty(0, 4),
    "flag": torch.tensor([True, False, True]),
}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def test_the_planned_file_is_the_library_s_own(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    front, offsets, size = plan_file({n: (code_of(t.dtype), tuple(t.shape)) for n, t in TENSORS.items()})
    ours = bytearray(size)
    ours[: len(front)] = front
    for name, at in offsets.items():
        data = raw(TENSORS[name])
        ours[at : at + len(data)] = data
    assert bytes(ours) == (tmp_path / "theirs.safetensors").read_bytes()


def test_a_header_is_read_with_where_everything_lies(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path)
    found = read_header(path)
    handle = os.open(path, os.O_RDONLY)
    for name, tensor in load_file(path).items():
        data = bytearray(found[name].nbytes)
        read_at(handle, found[name].offset, memoryview(data))
        assert (bytes(data), found[name].shape) == (raw(tensor), tuple(tensor.shape))
    with pytest.raises(OSError, match="ends at byte"):
        read_at(handle, path.stat().st_size - 1, memoryview(bytearray(2)))
    os.close(handle)


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BROKEN = {
    "empty": (b"", "no safetensors file"),
    "header beyond the file": ((99).to_bytes(8, "little") + b"{}", "claims 99 bytes"),
    "header too long": ((1 << 40).to_bytes(8, "little") + b"{}", "claims"),
    "no JSON": (file_of(b"[}"), "header is not right"),
    "no object": (file_of(b"[]"), "header is not right"),
    "a name twice": (
        file_of(b'{"a": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}, "a": {}}', b"x"),
        "a stands in it twice",
    ),
    "unknown dtype": (file_of({"a": entry("F6_E2M3", [4], 0, 3)}, b"xxx"), "dtype F6_E2M3"),
    "shape and bytes differ": (file_of({"a": entry("F32", [2], 0, 4)}, b"xxxx"), "a has 4 bytes, and F32 .2. needs 8"),
    "no offsets": (file_of({"a": {"dtype": "F32", "shape": [1]}}), "entry of a"),
    "negative": (file_of({"a": entry("U8", [-1], 0, 1)}, b"x"), "entry of a"),
    "gap": (file_of({"a": entry("U8", [1], 1, 2)}, b"xx"), "begins at byte"),
    "overlap": (file_of({"a": entry("U8", [2], 0, 2), "b": entry("U8", [1], 1, 2)}, b"xx"), "b begins at byte"),
    "truncated": (file_of({"a": entry("F32", [2], 0, 8)}, b"xxxx"), "cut short"),
    "trailing bytes": (file_of({"a": entry("U8", [1], 0, 1)}, b"xyz"), "2 bytes follow"),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_says_which_rule_it_breaks(tmp_path: Path, content: tuple[bytes, str]) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content[0])
    with pytest.raises(BadFile, match=content[1]):
        read_header(path)
