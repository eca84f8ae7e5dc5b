"""`trnt models` as a user types it."""

from __future__ import annotations

import json
from typing import Any

from trnt.models import registry


def test_the_list_and_its_json(trnt: Any) -> None:
    shown = trnt("models")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in registry.names())
    found = json.loads(trnt("models", "--json").stdout)
    assert [row["name"] for row in found["models"]] == registry.names()
    assert found["schema_version"]


def test_one_model(trnt: Any) -> None:
    shown = trnt("models", "Qwen/Qwen3-8B")
    assert "8.2 B parameters" in shown.stdout or "8.19" in shown.stdout
    assert json.loads(trnt("models", "qwen3-8b", "--json").stdout)["model"]["size"]["hidden_size"] == 4096


def test_a_typo(trnt: Any) -> None:
    shown = trnt("models", "lama3-8b")
    assert shown.returncode == 2
    assert "did you mean 'llama3-8b'?" in shown.stderr
