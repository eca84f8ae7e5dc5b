"""A framed chunk is a `torch.save` file, byte for byte but for its checksums."""

from __future__ import annotations

import io

import pytest
import torch

from trnt.checkpoint.dtypes import code_of
from trnt.checkpoint.items import frame

SHAPES = [(), (1,), (7,), (3, 4), (0, 5), (2, 3, 4), (1000, 70)]


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_frame_around_data_is_what_torch_loads(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.rand(shape).mul(100).to(dtype)
    around = frame(code_of(dtype), shape)
    whole = around.before + raw(tensor) + around.after
    assert len(whole) == around.length
    back = torch.load(io.BytesIO(whole), weights_only=True)
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert raw(back) == raw(tensor)


def saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def test_what_torch_saves_is_known_by_its_frame() -> None:
    around = frame("F32", (6, 4))
    usual = saved(torch.randn(6, 4))
    assert around.holds(usual[: len(around.before)], len(usual))
    for other in (torch.randn(4, 6).T, torch.randn(6, 4, requires_grad=True), torch.randn(4, 6), torch.zeros(48)[:24]):
        whole = saved(other)
        assert not around.holds(whole[: len(around.before)], len(whole))


def test_planning_a_large_chunk_takes_no_memory() -> None:
    around = frame("F32", (1 << 20, 1 << 16))  # 256 GiB
    assert around.nbytes == 1 << 38
    assert len(around.before) + len(around.after) < 4096


def test_torch_s_own_checksums_stay_as_they_were() -> None:
    from torch.serialization import get_crc32_options

    frame("F64", (3, 3))
    assert get_crc32_options()
