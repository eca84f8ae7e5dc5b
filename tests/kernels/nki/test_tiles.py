"""The kernels' sizes, and that their files import nothing but NKI through the seam."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trnt.kernels.nki import tiles

FOLDER = Path(tiles.__file__).parent
KERNELS = ("tiles", "activations", "route", "experts_forward", "experts_backward", "weight_gradients")


def test_parts_cover_a_length() -> None:
    assert tiles.parts(300, 128) == [(0, 0, 128), (1, 128, 128), (2, 256, 44)]
    assert tiles.parts(128, 128) == [(0, 0, 128)]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_import_nki_through_the_seam_only(name: str) -> None:
    own = ("api", "plan", "tiles", "activations", "weight_gradients")
    allowed = {"__future__", "math", *(f"trnt.kernels.nki.{one}" for one in own)}
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    found = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    found |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert found <= allowed
