"""Options become a torchtitan config; torchtitan's own dotted options get their types and their errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trnt import training
from trnt.assemble import leaves
from trnt.errors import TrntError, UsageError

Settings = Callable[..., Any]


@pytest.fixture
def build(config_of: Settings) -> Settings:
    return config_of


def test_options_land_in_torchtitan_s_fields(settings: Settings, build: Settings) -> None:
    tree = build(settings(steps=7, seq_len=16, batch_size=2, global_batch_size=8, seed=5, warmup=2, save_every=3))
    training_ = tree.training
    assert (training_.steps, training_.seq_len, training_.local_batch_size, training_.global_batch_size) == (
        7,
        16,
        2,
        8,
    )
    assert (tree.debug.seed, tree.lr_scheduler.warmup_steps, tree.checkpoint.interval) == (5, 2, 3)
    assert tree.parallelism.spmd_backend == "partial_dtensor"
    assert tree.training.mixed_precision_param == tree.training.dtype == "float32"
    assert len(tree.model_spec.model.layers) == 1


def test_dotted_options_take_the_field_s_type(settings: Settings, build: Settings) -> None:
    words = [
        "--training.max_norm",
        "0.5",
        "--metrics.enable_tensorboard",
        "false",
        "--lr_scheduler.decay_ratio",
        "none",
    ]
    words += ["--optimizer.implementation=foreach", "--compile.components", "model,loss", "--training.gc-freq=7"]
    tree = build(settings(arguments=words))
    assert tree.training.max_norm == 0.5
    assert tree.metrics.enable_tensorboard is False
    assert tree.lr_scheduler.decay_ratio is None
    assert tree.optimizer.implementation == "foreach"
    assert tree.compile.components == ["model", "loss"]
    assert tree.training.gc_freq == 7


@pytest.mark.parametrize(
    ("words", "cause", "fix"),
    [
        (["--training.max_nrom", "1"], "training.max_nrom", "--training.max_norm"),
        (["--training.gc_freq", "often"], "does not fit", "int"),
        (["--optimizer.implementation", "fastest"], "does not fit", "for-loop"),
        (["--training", "1"], "--training", ""),
        (["--model_spec.flavor", "x"], "cannot be set by hand", "--model"),
        (["--validator.enable", "true"], "cannot be set by hand", "no validation yet"),
        (["--checkpoint.keep_latest_k", "1"], "at least 2", ""),
        (["--compile.what.ever", "1"], "unknown option", ""),
    ],
)
def test_wrong_dotted_options_are_one_line(
    settings: Settings, words: list[str], cause: str, fix: str, build: Settings
) -> None:
    with pytest.raises(UsageError) as caught:
        build(settings(arguments=words))
    assert cause in caught.value.cause
    assert fix in caught.value.fix


@pytest.mark.parametrize("words", [[], ["--compile.backend", "neuron"]])
def test_compiling_for_neuron_without_one_is_a_clear_error(
    settings: Settings, words: list[str], build: Settings
) -> None:
    given = {} if words else {"compile": "neuron"}
    with pytest.raises(TrntError, match="needs a Neuron device"):
        build(settings(arguments=words, **given))


def test_every_leaf_of_the_tree_can_be_described(settings: Settings, build: Settings) -> None:
    names = leaves(build(settings()))
    assert {"training.seq_len", "compile.backend", "parallelism.tensor_parallel_degree"} <= names.keys()


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"model": "qwen3-tiny", "experts": 4}, "experts"),
        ({"model": "qwen3-tiny-moe", "experts": 2}, "top_k"),
        ({"layers": 99}, "layers"),
        ({"moe_balance": "aux"}, "dense"),
        ({"seq_len": 10**6}, "longer"),
        ({"global_batch_size": 3}, "multiple"),
        ({"model": "qwen3-tinny"}, "qwen3-tinny"),
        ({"tokenizer": "/nowhere"}, "nowhere"),
        ({"data": "/nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_built(
    settings: Settings, tmp_path: Path, given: dict[str, Any], cause: str, build: Settings
) -> None:
    with pytest.raises(UsageError) as caught:
        training.train(settings(**given), as_json=False)
    assert cause in caught.value.cause
    assert caught.value.fix
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("kind", "flag"), [("pipeline", "--pp"), ("context", "--cp"), ("tensor", "--tp")])
def test_degrees_that_the_processes_do_not_make_are_refused(
    settings: Settings, build: Settings, kind: str, flag: str
) -> None:
    with pytest.raises(UsageError, match=f"{flag} 2 does not divide the 1 processes"):
        build(settings(arguments=[f"--parallelism.{kind}_parallel_degree", "2"]))


def test_optimizers_on_several_processes(settings: Settings, build: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build(settings(optimizer="sgd")).optimizer.implementation == "fused"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert build(settings(optimizer="sgd")).optimizer.implementation == "foreach"
    with pytest.raises(UsageError, match="muon on several processes"):
        build(settings(optimizer="muon"))
