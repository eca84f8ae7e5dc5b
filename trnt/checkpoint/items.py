"""One item of a DCP file: a `torch.save` of one chunk, known as bytes before and after its data.

torch itself writes the frame, around data that is left out (`torch.serialization.skip_data`), so that an item of any
size can be planned, written and read as a stream: frame, data, frame. Checksums inside the frame are left at zero, as
`torch.serialization.set_crc32_options(False)` does; torch does not check them.
"""

from __future__ import annotations

import io
import math
import mmap
import sys
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trnt.checkpoint.dtypes import size_of, torch_dtype

MAP_NORESERVE = 0x4000  # Linux; Python's mmap does not name it everywhere
_saving = threading.Lock()  # torch's two switches below are of the whole process


@dataclass(frozen=True)
class Frame:
    """The bytes around a contiguous chunk's data."""

    before: bytes
    nbytes: int
    after: bytes

    @property
    def length(self) -> int:
        """Bytes of the item."""
        return len(self.before) + self.nbytes + len(self.after)

    def holds(self, before: bytes, length: int) -> bool:
        """Whether an item of `length` bytes that begins with `before` is framed so, but for its checksums."""
        return length == self.length and _bare(before) == _bare(self.before)


class _Sink(io.RawIOBase):
    """A file that keeps what is written to it by position; what is skipped stays out."""

    def __init__(self) -> None:
        self.at = 0
        self.parts: list[tuple[int, bytes]] = []

    def write(self, data: Any) -> int:
        self.parts.append((self.at, bytes(data)))
        self.at += len(self.parts[-1][1])
        return len(self.parts[-1][1])

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset if whence == 0 else self.at + offset
        return self.at

    def tell(self) -> int:
        return self.at


@lru_cache(maxsize=4096)
def frame(dtype: str, shape: tuple[int, ...]) -> Frame:
    """The frame of a chunk of this dtype code and shape."""
    import torch
    from torch.serialization import get_crc32_options, set_crc32_options

    tensor = _untouched(dtype, shape)
    sink = _Sink()
    with _saving:
        checked = get_crc32_options()
        set_crc32_options(False)
        try:
            with torch.serialization.skip_data():
                torch.save(tensor, sink)
        finally:
            set_crc32_options(checked)
    nbytes = tensor.numel() * tensor.element_size()
    whole = bytearray()
    gap = 0
    for at, data in sink.parts:
        if at - gap != len(whole):  # the data that was left out
            gap = at - len(whole)
            begin = len(whole)
        whole += data
    if not nbytes:
        begin = len(whole)
    assert gap == nbytes, (dtype, shape, gap, nbytes)
    return Frame(bytes(whole[:begin]), nbytes, bytes(whole[begin:]))


def _untouched(dtype: str, shape: tuple[int, ...]) -> Any:
    """A tensor whose memory is only promised: on Linux without a limit, elsewhere as far as the system promises."""
    import torch

    nbytes = math.prod(shape) * size_of(dtype)
    if not nbytes or sys.platform != "linux":
        return torch.empty(shape, dtype=torch_dtype(dtype))
    promised = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    return torch.frombuffer(promised, dtype=torch_dtype(dtype)).view(shape)


# Where a zip's structures keep a checksum: signature -> first byte of it (APPNOTE.TXT 4.3.7 and 4.3.9).
CHECKSUMS = {b"PK\x03\x04": 14, b"PK\x07\x08": 4}


def _bare(front: bytes) -> bytes:
    """A frame's first part without the checksums of its zip entries."""
    found = bytearray(front)
    for signature, place in CHECKSUMS.items():
        at = front.find(signature)
        while at >= 0:
            found[at + place : at + place + 4] = bytes(4)
            at = front.find(signature, at + 4)
    return bytes(found)
