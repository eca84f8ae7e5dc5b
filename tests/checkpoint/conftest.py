"""A checkpoint in memory, and the targets of a conversion filled from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from trnt.checkpoint.dtypes import code_of, torch_dtype
from trnt.checkpoint.layout import Target
from trnt.checkpoint.source import Info, Source


class Memory(Source):
    """Tensors by name, as a folder of `kind` would hold them."""

    def __init__(self, kind: str, held: Mapping[str, torch.Tensor]) -> None:
        super().__init__(Path("memory"))
        self.kind = kind
        self.held = {name: tensor.contiguous() for name, tensor in held.items()}
        self.tensors = {name: Info(code_of(t.dtype), tuple(t.shape)) for name, t in self.held.items()}

    def read(self, name: str, first: int, out: memoryview) -> None:
        flat = self.held[name].view(-1)
        torch.frombuffer(out, dtype=flat.dtype).copy_(flat[first : first + len(out) // flat.element_size()])

    def model_names(self) -> list[str]:
        return list(self.tensors)

    def files(self) -> list[Path]:
        return []

    def filled(self, targets: list[Target]) -> dict[str, torch.Tensor]:
        """What the targets hold."""
        found = {}
        for target in targets:
            parts = []
            for part in target.parts:
                if part.tensor is None:
                    parts.append(torch.zeros(part.count, dtype=torch_dtype(target.dtype)))
                else:
                    parts.append(self.held[part.tensor].view(-1)[part.first : part.first + part.count])
            found[target.name] = torch.cat(parts).view(target.shape).to(torch_dtype(target.dtype))
        return found


@pytest.fixture
def memory() -> Callable[..., Memory]:
    return Memory


@pytest.fixture
def same_bits() -> Callable[[Any, Any], bool]:
    """Whether two state dicts hold the same names, shapes, dtypes and bits."""

    def check(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
        return a.keys() == b.keys() and all(
            a[name].dtype == b[name].dtype
            and a[name].shape == b[name].shape
            and torch.equal(
                a[name].contiguous().view(-1).view(torch.uint8), b[name].contiguous().view(-1).view(torch.uint8)
            )
            for name in a
        )

    return check
