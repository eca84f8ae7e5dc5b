"""The plan is arithmetic: it must agree with what is built."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trnt.kernels.swap import own_gradients
from trnt.models import registry
from trnt.parallel.memory import Choice
from trnt.parallel.plan import Batch, Plan, Sharing, activation_values_per_token, make_plan, render


def plan(name: str, **changes: Any) -> Plan:
    entry = registry.get(name).cut(changes.pop("layers", None), changes.pop("experts", None))
    batch = Batch(128, changes.pop("batch_size", 2), changes.pop("global_batch_size", -1), steps=10)
    given = {"precision": "fp32", "logits_limit_bytes": 1 << 27, "free_bytes": 1 << 34, "peak_flops": 1e11}
    return make_plan(entry, batch, **{**given, **changes})


def test_the_headline_model_has_its_published_size() -> None:
    got = plan("qwen3-30b-a3b", layers=4, experts=64)
    assert got.params_total == pytest.approx(1.906e9, rel=1e-3)
    assert got.param_bytes == 4 * got.params_total


def test_weights_gradients_and_states_follow_the_precision() -> None:
    fp32, bf16 = plan("qwen3-tiny"), plan("qwen3-tiny", precision="bf16")
    assert fp32.checkpoint_bytes == 2 * bf16.checkpoint_bytes == 12 * fp32.params_total


def test_shared_weights_are_parts_and_what_is_gathered_depends_on_how() -> None:
    alone, shared = plan("qwen3-tiny"), plan("qwen3-tiny", sharing=Sharing(4))
    assert alone.param_bytes == 4 * shared.param_bytes
    assert alone.checkpoint_bytes == shared.checkpoint_bytes
    kept = plan("llama3-8b", sharing=Sharing(4, kept=True))
    layers = kept.params_total - 2 * 128256 * 4096  # all but the ends, which are gathered either way
    assert kept.memory_bytes - plan("llama3-8b", sharing=Sharing(4)).memory_bytes == layers * 4
    full = Choice(recompute="full")
    given = plan("llama3-8b", sharing=Sharing(4, kept=True), choice=full)
    assert given.memory_bytes == plan("llama3-8b", sharing=Sharing(4), choice=full).memory_bytes


def test_tokens_arithmetic_and_time_grow_with_the_batch() -> None:
    one, four = plan("qwen3-tiny", batch_size=1), plan("qwen3-tiny", batch_size=1, global_batch_size=4)
    assert four.tokens_per_step == 4 * one.tokens_per_step == 512
    assert four.seconds_total == pytest.approx(4 * one.seconds_total)
    assert four.activation_bytes == one.activation_bytes


def test_the_table_shows_every_figure_and_leaves_time_out_when_unknown() -> None:
    text = render(plan("qwen3-tiny-moe"))
    assert "active per token" in text
    assert "time per step" in text
    assert "time per step" not in render(plan("qwen3-tiny-moe", peak_flops=None))


@pytest.mark.parametrize("name", ["qwen3-tiny", "qwen3-tiny-moe", "llama3-tiny", "deepseek-v3-tiny", "gpt-oss-tiny"])
def test_activations_are_what_autograd_keeps(name: str, tiny_model: Callable[..., Any]) -> None:
    model = tiny_model(name)
    own_gradients(model)
    length = 64
    positions = torch.arange(length)[None]
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = tensor
        return tensor

    masks = model.get_attention_masks(positions)
    hidden = model.tok_embeddings(torch.randint(4096, (1, length)))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.layers[str(len(model.layers) - 1)](hidden, masks, positions)
    values = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / 4 / length
    # int64 indices of the routing are rounded to whole values in the formula
    assert activation_values_per_token(registry.get(name).size) == pytest.approx(values, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--optimizer-states", "bf16", "--gradient-dtype", "bf16"],
        ["--optimizer-states", "8bit", "--recompute", "full", "--seq-len", "512"],
        ["--optimizer", "sgd"],
    ],
)
def test_the_planned_peak_is_within_15_percent_of_the_measured_one(
    words: list[str], trnt: Callable[..., Any], tmp_path: Path
) -> None:
    base = ["train", "--model", "qwen3-0.6b", "--layers", "2", "--seq-len", "128", "--batch-size", "2", "--steps", "2"]
    done = trnt(*base, *words, "--out", str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["memory_planned_bytes"] == pytest.approx(summary["memory_peak_bytes"], rel=0.15)
