"""Conversions end to end, on folders as transformers writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from trnt import converting, training
from trnt.checkpoint import mapping
from trnt.checkpoint.dcp import open_dcp
from trnt.converting import Wanted
from trnt.errors import UsageError


def convert(source: Path, target: Path, **options: Any) -> dict[str, Any]:
    wanted = Wanted(**options)
    return converting.run(converting.plan(str(source), str(target), wanted), wanted)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def identical(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def logits(folder: Path) -> torch.Tensor:
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids = torch.randint(4096, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(ids).logits


CASES = {
    "dense": {},
    "tied": {"tied": True},
    "experts": {"experts": 6},
    "experts, 2 x width = hidden": {"experts": 4, "config": {"moe_intermediate_size": 32}},
    "experts, fused": {"experts": 6, "save_original_format": False},
    "bf16": {"experts": 4, "dtype": torch.bfloat16},
    "sharded": {"experts": 4, "max_shard_size": "200KB"},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("verify", ["full"])
def test_there_and_back_every_bit_and_file_survives(
    released: Callable[..., Path], tmp_path: Path, options: dict[str, Any], verify: str
) -> None:
    source = released(**options)
    there = convert(source, tmp_path / "dcp", verify=verify)
    assert (there["from"], there["to"]) == ("hf", "dcp")
    back = convert(tmp_path / "dcp", tmp_path / "hf", verify=verify, shard_bytes=300_000)
    assert (back["from"], back["to"]) == ("dcp", "hf")
    if "save_original_format" not in options:
        assert identical(weights(source), weights(tmp_path / "hf"))
    for name in ("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (source / name).read_bytes() == (tmp_path / "hf" / name).read_bytes()
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in weights(tmp_path / "hf").values())
    assert torch.equal(logits(source), logits(tmp_path / "hf"))


def test_torch_loads_the_dcp_folder_into_torchtitan_s_model(released: Callable[..., Path], tmp_path: Path) -> None:
    source = released(experts=6)
    convert(source, tmp_path / "dcp")
    opened = open_dcp(tmp_path / "dcp")
    entry = converting.open_checkpoint(str(source)).entry
    model = entry.family.titan_spec("x", entry.size).model.build()
    model.init_states(buffer_device=torch.device("cpu"))
    state = model.state_dict()
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert state.keys() == opened.tensors.keys()
    with converting.open_checkpoint(str(source)).source as hf:
        for link, (name, _) in mapping.places(entry, "hf", hf.tensors).items():
            value = state[link.native] if link.expert is None else state[link.native][link.expert]
            assert torch.equal(value, hf.tensor(name))


@pytest.mark.parametrize("through", ["hf", "dcp"])
def test_a_cut_is_the_first_layers_and_experts_and_loads(
    released: Callable[..., Path], tmp_path: Path, through: str
) -> None:
    source = released(experts=6)
    middle = source
    if through == "dcp":
        convert(source, tmp_path / "dcp")
        middle = tmp_path / "dcp"
    convert(middle, tmp_path / "cut", to="hf", layers=2, experts=4, verify="full")
    cut, whole = weights(tmp_path / "cut"), weights(source)
    assert not any(".layers.2." in name or ".experts.4." in name for name in cut)
    assert all(torch.equal(tensor, whole[name][: tensor.shape[0]]) for name, tensor in cut.items())
    config = json.loads((tmp_path / "cut" / "config.json").read_text())
    assert config["num_hidden_layers"] == 2
    assert {config[k] for k in ("num_experts", "num_local_experts") if k in config} == {4}
    logits(tmp_path / "cut")


def test_a_dtype_is_what_was_asked_for_everywhere(released: Callable[..., Path], tmp_path: Path) -> None:
    source = released()
    report = convert(source, tmp_path / "half", to="hf", dtype="bfloat16", verify="full")
    assert report["dtypes"] == ["bfloat16"]
    assert identical(weights(tmp_path / "half"), {n: t.bfloat16() for n, t in weights(source).items()})
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "half").dtype == torch.bfloat16
    assert report["bytes"] * 2 == sum(t.nbytes for t in weights(source).values())


def test_a_training_checkpoint_is_resharded_with_all_it_holds(settings: Callable[..., Any], tmp_path: Path) -> None:
    """The optimizer and the counters too: the run goes on from it as from the original."""
    arguments = ["--lr_scheduler.min_lr_factor", "1.0"]
    training.train(settings(steps=4, save_every=2, arguments=arguments), as_json=False)
    step = tmp_path / "run" / "checkpoint" / "step-2"
    report = convert(step, tmp_path / "again" / "checkpoint" / "step-2", to="dcp", shard_bytes=100_000)
    assert report["files"] > 1
    before, after = open_dcp(step), open_dcp(tmp_path / "again" / "checkpoint" / "step-2")
    assert before.tensors == after.tensors
    assert all(torch.equal(before.tensor(n), after.tensor(n)) for n in before.tensors)
    assert before.blobs().keys() == after.blobs().keys()
    given = {"resume": str(tmp_path / "again" / "checkpoint" / "step-2"), "out": str(tmp_path / "on")}
    training.train(settings(steps=4, arguments=arguments, **given), as_json=False)
    rows = [[json.loads(line) for line in (tmp_path / n / "metrics.jsonl").open()] for n in ("run", "on")]
    assert [row["loss"] for row in rows[0][2:]] == [row["loss"] for row in rows[1]]


@pytest.mark.parametrize("place", ["", "inside", "..", "../released"])
def test_a_destination_that_is_the_source_is_refused_even_with_force(released: Callable[..., Path], place: str) -> None:
    source = released()
    before = {path: path.stat().st_mtime_ns for path in source.iterdir()}
    with pytest.raises(UsageError, match="is, holds or lies inside"):
        convert(source, source / place, force=True)
    assert before == {path: path.stat().st_mtime_ns for path in source.iterdir()}


def test_an_existing_destination_is_refused_and_replaced_when_forced(
    released: Callable[..., Path], tmp_path: Path
) -> None:
    source = released()
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        convert(source, tmp_path / "out")
    convert(source, tmp_path / "out", force=True)
    assert (tmp_path / "out" / ".metadata").is_file()


def test_a_read_only_source_is_converted(released: Callable[..., Path], tmp_path: Path) -> None:
    source = released()
    for path in source.iterdir():
        path.chmod(0o444)
    source.chmod(0o555)
    convert(source, tmp_path / "out")
    source.chmod(0o755)
    assert all(path.stat().st_mode & 0o200 for path in (tmp_path / "out").rglob("*") if path.suffix == ".distcp")


def test_old_files_and_spoiled_values_are_converted_with_a_warning(
    released: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = released()
    held = weights(source)
    held["model.norm.weight"][3] = float("nan")
    (source / "model.safetensors").unlink()
    torch.save(held, source / "pytorch_model.bin")
    report = convert(source, tmp_path / "out", to="hf", verify="full")
    assert report["not_finite"] == {"model.norm.weight": 1}
    assert "NaN or infinite values in model.norm.weight" in capsys.readouterr().err
    assert torch.isnan(weights(tmp_path / "out")["model.norm.weight"][3])


def test_a_dry_run_writes_nothing_and_says_what_it_would(released: Callable[..., Path], tmp_path: Path) -> None:
    source = released(experts=4)
    wanted = Wanted(to="dcp")
    report = converting.dry_run(converting.plan(str(source), str(tmp_path / "out"), wanted), wanted)
    assert report["bytes"] >= sum(t.nbytes for t in weights(source).values())
    assert report["disk_needed_bytes"] > report["bytes"]
    assert report["disk_free_bytes"] > 0
    assert report["seconds_estimated"] > 0
    assert [p.name for p in tmp_path.iterdir()] == ["released"]
    assert "nothing was written" in converting.render(report)
