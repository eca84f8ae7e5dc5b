"""`trnt export` as a user types it: the folder loads with transformers alone and gives the trained model's logits."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trnt import training

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def trained_logits(run: Path, ids: torch.Tensor) -> torch.Tensor:
    """Logits (1, L, V) of the run's newest checkpoint in the native model, kernels swapped in as in training."""
    from trnt import runs
    from trnt.checkpoint.dcp import open_dcp
    from trnt.kernels.swap import swap
    from trnt.models import registry

    identity = runs.read_run(run)["identity"]  # type: ignore[index]
    entry = registry.get(identity["model"]).cut(identity["layers"], identity["experts"] or None)
    config = entry.family.titan_spec(entry.name, entry.size).model
    swap(config, moe_balance=identity["moe_balance"])
    model = config.build()
    model.init_states(buffer_device=torch.device("cpu"))
    step = runs.find_step(run)
    folder = open_dcp(step)
    missing, unexpected = model.load_state_dict({n: folder.tensor(n) for n in folder.model_names()}, strict=False)
    assert not [n for n in missing if "cache" not in n]
    assert not unexpected
    positions = torch.arange(ids.shape[1])[None]
    with torch.no_grad():
        masks = model.get_attention_masks(positions=positions)
        return model(ids, positions=positions, attention_masks=masks)


@pytest.mark.parametrize("model", ["qwen3-tiny", "qwen3-tiny-moe"])
def test_the_export_has_the_trained_model_s_logits(
    trnt: Run, settings: Callable[..., Any], tmp_path: Path, model: str
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = tmp_path / "runs" / "one"
    training.train(settings(model=model, layers=2, steps=4, lr=1e-2, out=str(run)), as_json=False)
    done = trnt("export", "--to", "hf", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "newest run: runs/one" in done.stderr
    report = json.loads(done.stdout)
    assert Path(report["folder"]) == Path("runs/one/hf")
    loaded, info = AutoModelForCausalLM.from_pretrained(run / "hf", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(run / "hf")
    ids = tokenizer("The old dog sees a river near the house.", return_tensors="pt").input_ids
    with torch.no_grad():
        got = loaded(ids).logits
    expected = trained_logits(run, ids)
    # 1e-4 of the logits' scale: two fp32 implementations that sum in another order
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert tokenizer.chat_template
    again = trnt("export", "--to", "hf", cwd=tmp_path)
    assert again.returncode != 0
    assert "--force" in again.stderr
    assert trnt("export", "--to", "hf", "--force", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "cause"),
    [
        ((), 1, "no run with a checkpoint"),
        (("nowhere",), 2, "nowhere"),
        (("--to", "gguf"), 2, "unknown format 'gguf'"),
        (("--dtype", "float8"), 2, "float8"),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    trnt: Run, tmp_path: Path, words: tuple[str, ...], code: int, cause: str
) -> None:
    done = trnt("export", *words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith("error:")
    assert cause in lines[0]
    assert lines[-1].startswith("fix:")
    assert "Traceback" not in done.stderr


def test_a_bias_that_the_export_drops_is_said_with_its_effect(
    trnt: Run, settings: Callable[..., Any], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    training.train(settings(model="qwen3-tiny-moe", moe_balance="bias", steps=6, out=str(run)), as_json=False)
    done = trnt("export", str(run), "--json")
    assert done.returncode == 0, done.stderr
    assert "bias" in done.stderr
    assert "logits" in done.stderr
