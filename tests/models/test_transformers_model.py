"""transformers' model behind torchtitan's protocol: filled from a folder, and computing what transformers computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.models.conftest import KINDS
from trnt.errors import TrntError
from trnt.models.transformers_model import HFModel


def built(folder: Path, weights: Path | None = None, **options: Any) -> HFModel:
    config = HFModel.Config(
        hf_config=json.loads((folder / "config.json").read_text()), weights=str(weights) if weights else None, **options
    )
    with torch.device("meta"):
        model = config.build()
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights()
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_transformers_own(kind: str, hub_folder: Callable[..., Path]) -> None:
    folder = hub_folder(kind)
    ours = built(folder, folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.randint(4096, (2, 30), generator=torch.Generator().manual_seed(3))
    where = torch.arange(30).repeat(2, 1)
    loss = torch.nn.functional.cross_entropy(ours(ids, positions=where)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    expected = theirs(ids, labels=ids).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    loss.backward()
    expected.backward()
    held = dict(theirs.named_parameters())
    assert {name.removeprefix("hf.") for name, _ in ours.named_parameters()} == set(held)
    for name, parameter in ours.named_parameters():
        grad = held[name.removeprefix("hf.")].grad
        assert (parameter.grad - grad).abs().max() <= 1e-4 * grad.abs().max() + 1e-7, name


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_the_loss_gets_a_head_that_finishes_the_logits(kind: str, hub_folder: Callable[..., Path]) -> None:
    model = built(folder := hub_folder(kind), folder)
    ids, where = torch.randint(4096, (1, 20)), torch.arange(20)[None]
    with torch.no_grad():
        whole = model(ids, positions=where)
        model._skip_lm_head = True
        before = model(ids, positions=where)
        assert (before.shape[-1] == 64) == (kind == "llama")
        assert torch.allclose(model.lm_head(before), whole, atol=1e-6)
    assert model.lm_head.weight.shape[0] == 4096


def test_random_weights_follow_the_seed_and_ties_hold(hub_folder: Callable[..., Path]) -> None:
    folder = hub_folder("qwen3")
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(built(folder))
    one, same, other = (dict(model.named_parameters())["hf.model.embed_tokens.weight"] for model in found)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert found[0].head is not None
    assert found[0].head.weight is one
    assert not any(value.is_meta for value in (*found[0].parameters(), *found[0].buffers()))
    assert len(found[0].layers) == 2


def test_a_folder_that_lacks_a_tensor_is_refused(hub_folder: Callable[..., Path]) -> None:
    folder = hub_folder("llama")
    held = load_file(folder / "model.safetensors")
    del held["model.layers.1.mlp.up_proj.weight"]
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrntError, match="lacks 1 of the model"):
        built(folder, folder)


def test_an_attention_that_transformers_does_not_have_is_one_line(hub_folder: Callable[..., Path]) -> None:
    with pytest.raises(TrntError, match="transformers: ") as caught:
        built(hub_folder("gpt_oss"), attn_implementation="sdpa")
    assert "--attn-implementation" in caught.value.fix
    assert "\n" not in caught.value.cause
    model = built(hub_folder("llama", "other"), attn_implementation="eager")
    assert model.hf.config._attn_implementation == "eager"


@pytest.mark.parametrize("kind", ["tensor", "context", "pipeline", "expert"])
def test_parallelism_that_is_not_there_is_refused(kind: str) -> None:
    degrees = dict.fromkeys((f"{k}_parallel_degree" for k in ("tensor", "context", "pipeline", "expert")), 1)
    asked = SimpleNamespace(parallelism=SimpleNamespace(**{**degrees, f"{kind}_parallel_degree": 2}))
    with pytest.raises(TrntError, match=f"no {kind} parallelism"):
        HFModel.Config(hf_config={}).update_from_config(config=asked)
