"""What `trnt train` decides before and after the loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trnt import config, ready, runs, training
from trnt.errors import UsageError

Settings = Callable[..., Any]


def test_a_run_s_recipe_runs_the_same_again(settings: Settings, tmp_path: Path) -> None:
    training.train(settings(lr=2e-3, seed=4), as_json=False)
    recipe = tmp_path / "run" / "recipe.toml"
    again = config.resolve({"out": str(tmp_path / "again")}, recipe=str(recipe), environment={})
    training.train(again, as_json=False)
    rows = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("run", "again")]
    losses = [[json.loads(row)["loss"] for row in part] for part in rows]
    assert losses[0] == losses[1]


def test_the_same_out_with_other_options_is_refused_and_untouched(settings: Settings, tmp_path: Path) -> None:
    training.train(settings(), as_json=False)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    with pytest.raises(UsageError, match="seed 0 -> 3"):
        training.train(settings(seed=3), as_json=False)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")} == before
    training.train(settings(seed=3, force=True), as_json=False)
    assert len(list(tmp_path.glob("run.replaced-*"))) == 1


def test_the_identity_holds_what_resume_must_not_mix(settings: Settings) -> None:
    one = ready.identity(ready.prepare(settings()))
    for changes in ({"seed": 1}, {"seq_len": 16}, {"layers": 2}, {"model": "qwen3-tiny-moe"}, {"shuffle": False}):
        other = ready.identity(ready.prepare(settings(**changes)))
        assert runs.differences(one, other), changes
    for changes in ({"steps": 50}, {"lr": 1e-4}, {"batch_size": 4}, {"save_every": 7}):
        assert ready.identity(ready.prepare(settings(**changes))) == one


def hf_loss(folder: Path, ids: Any) -> float:
    """The mean cross entropy of transformers' own model on rows (B, L + 1), in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        logits = model(ids[:, :-1]).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))


def first_rows(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches that a training sees, noted as they pass."""
    from trnt.trainer import Trainer

    seen: list[Any] = []
    real = Trainer.forward_backward_step

    def note(self: Any, *, input_dict: Any, labels: Any, global_valid_tokens: Any) -> Any:
        seen.append((input_dict, labels))
        return real(self, input_dict=input_dict, labels=labels, global_valid_tokens=global_valid_tokens)

    monkeypatch.setattr(Trainer, "forward_backward_step", note)
    return seen


@pytest.mark.parametrize("experts", [0, 6])
@pytest.mark.parametrize("form", ["hf", "dcp", "bf16"])
def test_a_run_that_starts_from_weights_begins_with_their_loss(
    settings: Settings, released: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experts: int, form: str
) -> None:
    import torch

    from tests.test_converting import convert

    # scores scaled to one in two cases, and as they come in the third
    more = {"dtype": torch.bfloat16, **({"norm_topk": False} if experts else {})} if form == "bf16" else {}
    folder = released(experts=experts, **more)
    start = folder
    if form == "dcp":
        start = tmp_path / "dcp"
        convert(folder, start)
    seen = first_rows(monkeypatch)
    # rows of one document each: transformers does not keep packed documents apart
    words = " ".join(f"{w} river" for w in ("old dog", "small cat", "house", "tree")) * 40
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "one.txt").write_text(words)
    given = {"model": None, "layers": None, "init_from": str(start), "data": str(tmp_path / "text"), "steps": 1}
    training.train(settings(**given, batch_size=1, lr=1e-6), as_json=False)
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    inputs, labels = seen[0]
    ids = torch.cat([inputs["input"], labels[:, -1:]], dim=1)
    assert torch.equal(ids[:, 1:], labels)
    # 1e-4: two fp32 implementations that sum in another order
    assert row["loss"] == pytest.approx(hf_loss(folder, ids), rel=1e-4)
    from trnt.exporting import export_run

    report = export_run(str(tmp_path / "run"), str(tmp_path / "out"), runs_dir="x", dtype=None, force=False)
    assert report["dtype"] == "float32"
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert f"base model: {start}" in (tmp_path / "out" / "README.md").read_text()
    assert hf_loss(tmp_path / "out", ids) < row["loss"]


def test_a_cut_start_equals_the_cut_folder(settings: Settings, released: Any, tmp_path: Path) -> None:
    from tests.test_converting import convert

    folder = released(experts=6)
    convert(folder, tmp_path / "cut", to="hf", layers=2, experts=4)
    losses = []
    for name, given in (
        ("a", {"init_from": folder, "layers": 2, "experts": 4}),
        ("b", {"init_from": tmp_path / "cut"}),
    ):
        given = {"model": None, "layers": None, **given, "init_from": str(given["init_from"]), "steps": 1}
        training.train(settings(out=str(tmp_path / name), **given), as_json=False)
        losses.append(json.loads((tmp_path / name / "metrics.jsonl").read_text())["loss"])
    assert losses[0] == losses[1]


def test_a_resumed_run_does_not_start_from_the_weights_again(
    settings: Settings, released: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"model": None, "layers": None, "init_from": str(released())}
    training.train(settings(steps=2, **given), as_json=False)
    from trnt.trainer import Trainer

    monkeypatch.setattr(Trainer, "_init_from", lambda self, path: pytest.fail("loaded again"))
    training.train(settings(steps=3, **given), as_json=False)


def test_another_model_s_name_beside_the_weights_is_refused(settings: Settings, released: Any) -> None:
    with pytest.raises(UsageError, match="is not the model in"):
        training.train(settings(model="qwen3-tiny", layers=None, init_from=str(released())), as_json=False)


def test_a_router_that_collapses_is_worth_a_word() -> None:
    rows = [{"step": step, "moe/busiest_expert": 5.0} for step in range(20)]
    assert "5.0 times its share: --moe-balance aux" in (training.uneven("none", rows) or "")
    assert training.uneven("aux", rows) is None
    assert training.uneven("none", [*rows, {"step": 20, "moe/busiest_expert": 2.0}]) is None
    assert training.uneven("none", [{"step": 1, "loss": 2.0}]) is None
    assert training.uneven("none", []) is None
