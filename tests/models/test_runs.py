"""Each family's tiny model from text to a folder that transformers loads: train, resume, export, start again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

WORDS = ("--seq-len", "64", "--batch-size", "2", "--seed", "1")


def trnt(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "trnt", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def losses(run: Path) -> dict[int, float]:
    rows = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama3-tiny", "qwen3-tiny", "deepseek-v3-tiny", "gpt-oss-tiny"])
def test_train_resume_export_and_start_again(tmp_path: Path, model: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    trnt("train", "--model", model, "--steps", "20", "--save-every", "10", *WORDS, "--out", str(first))
    found = losses(first)
    assert found[20] < found[1] - 0.15
    start = str(first / "checkpoint" / "step-10")
    trnt("train", "--model", model, "--steps", "20", *WORDS, "--resume", start, "--out", str(second))
    assert losses(second) == {step: loss for step, loss in found.items() if step > 10}
    trnt("export", str(first), str(tmp_path / "hf"), "--to", "hf")
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.isfinite(value).all() for value in loaded.state_dict().values())
    again = tmp_path / "again"
    trnt("train", "--init-from", str(tmp_path / "hf"), "--steps", "1", *WORDS, "--out", str(again))
    assert losses(again)[1] < found[1] - 0.15  # it begins where the other ended, on another batch
