"""The rows of `trnt models`."""

from __future__ import annotations

import pytest

from trnt.errors import UsageError
from trnt.models import listing, registry


def test_every_model_has_a_row() -> None:
    assert [row["name"] for row in listing.rows()] == registry.names()
    assert {row["family"] for row in listing.rows()} == set(registry.FAMILIES)
    assert all(row["family"] == "llama3" for row in listing.rows("llama3"))


def test_a_row_by_hand() -> None:
    row = next(row for row in listing.rows() if row["name"] == "qwen3-30b-a3b")
    assert row["params_total"] == pytest.approx(30.5e9, rel=0.005)
    assert row["params_active"] == pytest.approx(3.35e9, rel=0.005)
    assert (row["layers"], row["experts"], row["top_k"], row["context"]) == (48, 128, 8, 40960)
    assert row["training_bytes"] == 16 * row["params_total"]
    assert "--experts" in row["supports"]


def test_one_in_full_and_names_that_are_nearly_right() -> None:
    found = listing.describe("meta-llama/Llama-3.2-1B-Instruct")
    assert found["size"]["rope_factor"] == 32
    assert "rope_factor" in listing.page(found)
    with pytest.raises(UsageError) as caught:
        listing.describe("llama3.1-8")
    assert "llama3.1-8b" in caught.value.fix
    with pytest.raises(UsageError, match="unknown family"):
        listing.rows("llama")
