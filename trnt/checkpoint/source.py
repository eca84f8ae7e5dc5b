"""A checkpoint to read from: names, shapes and dtypes at once, values as bytes of any stretch of a tensor.

Every tensor counts as one row of values in C order. A stretch is (first value, number of values): an expert's slice of
a stack, or the first rows of a router, are stretches. Nothing is ever opened for writing.
"""

from __future__ import annotations

import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnt.checkpoint.dtypes import size_of
from trnt.errors import TrntError

PIECE = 8 << 20  # bytes read at once: what is read, cast and hashed stays in the cache
LISTED = 40  # problems named in one error


@dataclass(frozen=True)
class Info:
    """What a tensor is."""

    dtype: str
    """safetensors' code, `checkpoint/dtypes.py`."""
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * size_of(self.dtype)


class Source(ABC):
    """A folder to read. `kind` is hf or dcp: whose names its tensors have."""

    kind: str
    path: Path
    tensors: dict[str, Info]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors = {}
        self._handles: dict[Path, int] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def read(self, name: str, first: int, out: memoryview) -> None:
        """Fill `out` with the bytes of a tensor from value `first` on. Safe in many threads. Raises TrntError."""

    @abstractmethod
    def files(self) -> list[Path]:
        """The files that hold its tensors."""

    def file_of(self, name: str) -> str:
        """The name of the file that a tensor is in, for messages; empty when it is in several."""
        del name
        return ""

    def handle(self, file: Path) -> int:
        """A file descriptor for reading, kept open."""
        with self._lock:
            if file not in self._handles:
                self._handles[file] = os.open(file, os.O_RDONLY)
            return self._handles[file]

    def tensor(self, name: str) -> Any:
        """A whole tensor in its own dtype, as torch's."""
        import torch

        from trnt.checkpoint.dtypes import torch_dtype

        info = self.tensors[name]
        buffer = bytearray(info.nbytes)
        self.read(name, 0, memoryview(buffer))
        if not buffer:
            return torch.empty(info.shape, dtype=torch_dtype(info.dtype))
        return torch.frombuffer(buffer, dtype=torch_dtype(info.dtype)).view(info.shape)

    def close(self) -> None:
        with self._lock:
            for handle in self._handles.values():
                os.close(handle)
            self._handles.clear()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *what: Any) -> None:
        self.close()


def refuse(path: Path, problems: list[str], fix: str) -> None:
    """Raise one TrntError that lists all problems, when there are any."""
    if not problems:
        return
    more = f"; and {len(problems) - LISTED} more" if len(problems) > LISTED else ""
    raise TrntError(f"{path}: {'; '.join(problems[:LISTED])}{more}", fix)


def cannot_read(file: Path, error: OSError) -> TrntError:
    """The error for a file that could be opened before and cannot be read now."""
    return TrntError(f"cannot read {file}: {error.strerror or error}", "copy or download the file again")


def pieces(count: int, most: int) -> Iterator[tuple[int, int]]:
    """(first, number) of consecutive stretches of at most `most` values."""
    for first in range(0, count, most):
        yield first, min(most, count - first)


def infos(found: Mapping[str, Any]) -> dict[str, Info]:
    """Infos of `safe.Stored` tensors."""
    return {name: Info(stored.dtype, stored.shape) for name, stored in found.items()}
