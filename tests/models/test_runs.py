"""Each family's tiny model from text to a folder that transformers loads: train, resume, export, start again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.conftest import check_export, train


@pytest.mark.parametrize("model", ["llama3-tiny", "qwen3-tiny", "qwen3-tiny-moe", "deepseek-v3-tiny", "gpt-oss-tiny"])
def test_train_resume_export_and_start_again(tmp_path: Path, model: str) -> None:
    whole = train(tmp_path / "run", model=model, steps=20, save_every=10)
    assert whole[20]["loss"] < whole[1]["loss"] - 0.15
    step = str(tmp_path / "run" / "checkpoint" / "step-10")
    again = train(tmp_path / "again", model=model, steps=20, resume=step)
    assert {n: row["loss"] for n, row in again.items()} == {n: r["loss"] for n, r in whole.items() if n > 10}
    check_export(tmp_path / "run", tmp_path / "hf")
    start = train(tmp_path / "third", init_from=str(tmp_path / "hf"), steps=1)
    assert start[1]["loss"] < whole[1]["loss"] - 0.15  # it begins where the other ended, on another batch
