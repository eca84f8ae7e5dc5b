"""Compiled code lies in the user's cache, and the time that it took is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from trnt import compiling


def test_the_place_is_the_user_s_cache_unless_it_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRNT_CACHE", str(tmp_path))
    monkeypatch.delenv(compiling.INDUCTOR, raising=False)
    assert compiling.keep() == str(tmp_path / "inductor") == os.environ[compiling.INDUCTOR]
    monkeypatch.setenv(compiling.INDUCTOR, "/elsewhere")
    assert compiling.keep() == "/elsewhere"


def test_compiling_takes_time_and_running_does_not() -> None:
    before = compiling.seconds()
    compiled = torch.compile(lambda x: (x * 2).sin().sum(), backend="aot_eager")
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward()
    after = compiling.seconds()
    assert after > before
    compiled(x).backward()
    assert compiling.seconds() == after
