"""The seam: the vendor's package where it imports, the interpreter elsewhere or when asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trnt.kernels import sim
from trnt.kernels.nki import api

SHOW = "from trnt.kernels.nki import api; print(api.real(), api.nki.__name__, api.nl.__name__)"


def shown(path: Path, **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{Path(__file__).parents[3]}", **environment}
    return subprocess.run([sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, check=True).stdout


def package(folder: Path, *, placeholder: bool) -> Path:
    (folder / "nki").mkdir()
    (folder / "nki" / "__init__.py").write_text("")
    if not placeholder:
        (folder / "nki" / "isa.py").write_text("")
        (folder / "nki" / "language.py").write_text("")
    return folder


def test_here_the_interpreter_stands_in() -> None:
    assert api.nki is sim
    assert not api.real()


def test_where_nki_imports_it_is_taken(tmp_path: Path) -> None:
    assert shown(package(tmp_path, placeholder=False)).split() == ["True", "nki", "nki.language"]


@pytest.mark.parametrize(("placeholder", "environment"), [(True, {}), (False, {"TRNT_NKI": "interpreter"})])
def test_a_placeholder_does_not_count_and_the_interpreter_can_be_asked_for(
    tmp_path: Path, placeholder: bool, environment: dict[str, str]
) -> None:
    got = shown(package(tmp_path, placeholder=placeholder), **environment)
    assert got.split() == ["False", "trnt.kernels.sim", "trnt.kernels.sim.language"]
