"""A checkpoint seen through something: rows in another order, weights dequantised, tensors left out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trnt.checkpoint.source import Info, Source


class Wrapped(Source):
    """`source` with other tensors or values; files, handles and messages are its own. tensors: those that are seen."""

    def __init__(self, source: Source, tensors: dict[str, Info]) -> None:
        super().__init__(source.path)
        self.source, self.kind, self.tensors = source, source.kind, tensors

    def read(self, name: str, first: int, out: memoryview) -> None:
        self.source.read(name, first, out)

    def files(self) -> list[Path]:
        return self.source.files()

    def file_of(self, name: str) -> str:
        return self.source.file_of(name)

    def handle(self, file: Path) -> int:
        return self.source.handle(file)

    def close(self) -> None:
        self.source.close()


def without(source: Source, names: Iterable[str]) -> Source:
    """`source` without some tensors; the source itself where there are none."""
    left_out = set(names)
    if not left_out:
        return source
    return Wrapped(source, {name: info for name, info in source.tensors.items() if name not in left_out})
