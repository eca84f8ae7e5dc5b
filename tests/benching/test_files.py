"""Checkpoints and batches come back to the bit, and nothing stays on the disk."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.benching.cases import errors, pairs
from trnt.benching import files, names
from trnt.benching.sizes import sizes_of
from trnt.errors import TrntError, UsageError
from trnt.models import registry


@pytest.mark.parametrize(("name", "kernels"), pairs(names.FILES))
def test_a_case_gives_back_what_it_was_given(name: str, kernels: str) -> None:
    assert errors(name, kernels) == (0.0, 0.0)


def test_the_checkpoint_goes_with_its_inputs() -> None:
    given = files.weights(sizes_of(registry.get("qwen3-tiny"), 8), "cpu", torch.float32)
    files.save(given)
    folder = Path(given.scratch.name)
    assert list(folder.rglob("*.distcp"))
    del given
    gc.collect()
    assert not folder.exists()


def test_a_full_disk_is_said_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(TrntError, match="are needed"):
        files.weights(sizes_of(registry.get("qwen3-tiny"), 8), "cpu", torch.float32)


def test_more_text_than_there_is() -> None:
    with pytest.raises(UsageError, match="the bundled text has"):
        files.text(sizes_of(registry.get("qwen3-tiny"), 10**7), "cpu", torch.float32)
