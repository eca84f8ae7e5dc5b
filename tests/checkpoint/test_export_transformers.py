"""The export of a transformers run: whole or not at all, in the dtype asked for, refused when a weight is no number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.models.conftest import train
from trnt import exporting, opening
from trnt.errors import TrntError, UsageError
from trnt.models.registry import UnknownModel


@pytest.fixture
def run(tmp_path: Path) -> Path:
    train(tmp_path / "run", model="qwen3-tiny", layers=1, steps=1, backend="transformers")
    return tmp_path / "run"


def export(run: Path, target: Path, **options: object) -> dict[str, object]:
    given = {"runs_dir": "runs", "dtype": None, "force": False, **options}
    return exporting.export_run(str(run), str(target), **given)  # type: ignore[arg-type]


def test_dtype_shards_and_what_stays(run: Path, tmp_path: Path) -> None:
    report = export(run, tmp_path / "hf", dtype="bfloat16", shard_bytes=500_000)
    assert report["dtype"] == "bfloat16"
    assert report["architecture"] == "Qwen3ForCausalLM"
    assert int(str(report["files"])) > 1
    assert {path.name for path in (tmp_path / "hf").iterdir()} >= {"README.md", "generation_config.json", "config.json"}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert loaded.dtype == torch.bfloat16
    with pytest.raises(UsageError, match="exists already"):
        export(run, tmp_path / "hf")
    export(run, tmp_path / "hf", force=True)
    held = load_file(tmp_path / "hf" / "model.safetensors")
    assert all(value.dtype == torch.float32 for value in held.values())
    state = {f"hf.{name}": torch.zeros_like(value) for name, value in held.items()}
    dcp.load(state, checkpoint_id=str(run / "checkpoint" / "step-1"), no_dist=True)
    assert all(torch.equal(value, state[f"hf.{name}"]) for name, value in held.items())


def test_a_weight_that_is_no_number_leaves_nothing(run: Path, tmp_path: Path) -> None:
    step = run / "checkpoint" / "step-1"
    name = "hf.model.norm.weight"
    state = {name: torch.zeros(128)}
    dcp.load(state, checkpoint_id=str(step), no_dist=True)
    held = exporting.runs.steps(run / "checkpoint")
    assert list(held) == [1]
    from trnt.checkpoint.dcp import open_dcp

    with open_dcp(step) as source:
        whole = {key: source.tensor(key) for key in source.model_names()}
    whole[name][3] = float("nan")
    dcp.save(whole, checkpoint_id=str(run / "checkpoint" / "step-2"), no_dist=True)
    with pytest.raises(TrntError, match=f"{name} holds NaN"):
        export(run, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
    assert not list(tmp_path.glob(".hf*"))
    del whole[name]
    dcp.save(whole, checkpoint_id=str(run / "checkpoint" / "step-3"), no_dist=True)
    with pytest.raises(TrntError, match=r"disagree on model\.norm\.weight"):
        export(run, tmp_path / "hf")


def test_what_such_a_run_is_not_for(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is exported to hf"):
        export(run, tmp_path / "dcp", to="dcp")
    with pytest.raises(UnknownModel, match="trained with --backend transformers"):
        opening.open_checkpoint(str(run))
