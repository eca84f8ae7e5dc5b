"""The trainer's promises: it learns, it repeats itself to the bit, it resumes exactly, it stops before harm."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trnt import launch, runs, training
from trnt.errors import TrntError
from trnt.runs import read_rows

Settings = Callable[..., Any]


def losses(run: Path) -> list[tuple[float, float]]:
    return [(row["loss"], row["grad_norm"]) for row in read_rows(run / "metrics.jsonl")]


@pytest.mark.parametrize("model", ["qwen3-tiny", "qwen3-tiny-moe"])
def test_overfitting_one_batch_drives_the_loss_below_a_tenth(settings: Settings, tmp_path: Path, model: str) -> None:
    text = tmp_path / "one.txt"
    text.write_text("It is a truth universally acknowledged, that a single man in possession of a good fortune.")
    code = training.train(
        settings(model=model, data=str(text), seq_len=16, batch_size=1, steps=60, lr=3e-3, save_every=1000),
        as_json=False,
    )
    got = losses(tmp_path / "run")
    assert code == 0
    assert len(got) == 60
    assert got[0][0] > 6
    assert got[-1][0] < 0.1


@pytest.mark.parametrize("model", ["qwen3-tiny", "qwen3-tiny-moe"])
def test_the_same_seed_gives_the_same_losses_to_the_bit(settings: Settings, tmp_path: Path, model: str) -> None:
    for name in ("a", "b"):
        training.train(settings(model=model, out=str(tmp_path / name)), as_json=False)
    training.train(settings(model=model, out=str(tmp_path / "c"), seed=1), as_json=False)
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert losses(tmp_path / "a") != losses(tmp_path / "c")


@pytest.mark.parametrize("model", ["qwen3-tiny", "qwen3-tiny-moe"])
def test_three_and_three_steps_equal_six_to_the_bit(settings: Settings, tmp_path: Path, model: str) -> None:
    schedule = ("--lr_scheduler.total_steps", "6")
    training.train(settings(model=model, steps=6, arguments=schedule, out=str(tmp_path / "six")), as_json=False)
    for steps in (3, 6):
        code = training.train(
            settings(model=model, steps=steps, arguments=schedule, out=str(tmp_path / "parts")), as_json=False
        )
        assert code == 0
    assert losses(tmp_path / "six") == losses(tmp_path / "parts")
    rows = [read_rows(tmp_path / name / "metrics.jsonl") for name in ("six", "parts")]
    assert [r["step"] for r in rows[1]] == [1, 2, 3, 4, 5, 6]
    assert [r["lr"] for r in rows[0]] == [r["lr"] for r in rows[1]]
    assert [r["tokens"] for r in rows[0]] == [r["tokens"] for r in rows[1]]
    weights = [weights_of(tmp_path / name / "checkpoint" / "step-6") for name in ("six", "parts")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def weights_of(step: Path) -> dict[str, torch.Tensor]:
    from trnt.checkpoint.dcp import open_dcp

    folder = open_dcp(step)
    return {name: folder.tensor(name) for name in folder.model_names()}


def test_resume_from_another_run_leaves_it_untouched(settings: Settings, tmp_path: Path) -> None:
    schedule = ("--lr_scheduler.total_steps", "6")
    training.train(settings(steps=6, arguments=schedule, out=str(tmp_path / "six")), as_json=False)
    training.train(settings(steps=3, arguments=schedule, out=str(tmp_path / "a")), as_json=False)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*")}
    training.train(
        settings(steps=6, arguments=schedule, out=str(tmp_path / "b"), resume=str(tmp_path / "a")), as_json=False
    )
    assert losses(tmp_path / "six")[3:] == losses(tmp_path / "b")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*")} == before


def test_an_incomplete_newest_step_is_skipped_and_named(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    training.train(settings(steps=4, save_every=2), as_json=False)
    whole = losses(run)
    data = next((run / "checkpoint" / "step-4").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-100])
    (run / "checkpoint" / "step-9.partial").mkdir()
    training.train(settings(steps=4, save_every=2), as_json=False)
    said = capsys.readouterr().err
    assert "step-4" in said
    assert "incomplete" in said
    assert "resumed at step 2" in said
    assert losses(run) == whole


def test_accumulated_gradients_equal_one_large_batch(settings: Settings, tmp_path: Path) -> None:
    for name, batch in (("one", 4), ("four", 1)):
        training.train(
            settings(out=str(tmp_path / name), batch_size=batch, global_batch_size=4, steps=4), as_json=False
        )
    for one, four in zip(losses(tmp_path / "one"), losses(tmp_path / "four"), strict=True):
        # fp32 sums in another order: about 1e-7 relative per step, and AdamW carries it on
        assert four == pytest.approx(one, rel=2e-5)


def test_a_loss_that_is_not_finite_stops_before_the_optimizer(settings: Settings, config_of: Settings) -> None:
    trainer = config_of(settings())
    trainer = trainer.build()
    try:
        with torch.no_grad():
            trainer.model_parts[0].norm.weight[0] = float("nan")
        before = [p.detach().clone() for p in trainer.model_parts[0].parameters()]
        with pytest.raises(TrntError, match="loss of step 1 is nan"):
            trainer.train()
        after = list(trainer.model_parts[0].parameters())
        assert all(
            torch.equal(
                a,
                b,
            )
            or torch.isnan(a).any()
            for a, b in zip(before, after, strict=True)
        )
        assert trainer.lr_schedulers.schedulers[0].last_epoch == 0
        assert not trainer.optimizers.optimizers[0].state
    finally:
        close(trainer)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_stops_before_the_optimizer(
    settings: Settings, value: float, config_of: Settings
) -> None:
    trainer = config_of(settings()).build()
    try:
        layer = trainer.model_parts[0].layers["0"]
        layer.attention.wo.register_full_backward_pre_hook(lambda module, grads: (grads[0] * value,))
        weight = layer.attention.wo.weight
        before = weight.detach().clone()
        with pytest.raises(TrntError, match="gradient norm of step 1"):
            trainer.train()
        assert torch.equal(weight, before)
        assert not trainer.optimizers.optimizers[0].state
        assert not runs.steps(Path(trainer.config.dump_folder) / "checkpoint")
    finally:
        close(trainer)


def close(trainer: Any) -> None:
    import gc

    trainer.close()
    torch.distributed.destroy_process_group()
    gc.enable()


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("MASTER_PORT", str(launch.free_port()))


def test_a_signal_finishes_the_step_saves_and_puts_the_handlers_back(settings: Settings, tmp_path: Path) -> None:
    from trnt.trainer import Trainer

    before = signal.getsignal(signal.SIGTERM)
    original = Trainer.train_step

    def step(self: Any, batches: Any) -> None:
        original(self, batches)
        if self.step == 2:
            signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "train_step", step)
        assert training.train(settings(steps=50), as_json=False) == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert list(runs.steps(tmp_path / "run" / "checkpoint")) == [2]
    assert training.train(settings(steps=4), as_json=False) == 0
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize("balance", ["bias", "aux"])
def test_expert_balance_changes_training_and_is_reported(settings: Settings, tmp_path: Path, balance: str) -> None:
    for name in ("none", balance):
        training.train(
            settings(model="qwen3-tiny-moe", moe_balance=name, out=str(tmp_path / name), steps=4, lr=1e-2),
            as_json=False,
        )
    assert losses(tmp_path / "none") != losses(tmp_path / balance)
    row = read_rows(tmp_path / balance / "metrics.jsonl")[-1]
    assert row["moe/busiest_expert"] >= 1
    assert ("moe/aux_loss" in row) == (balance == "aux")
