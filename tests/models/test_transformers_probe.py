"""What is found out of a model by running it: documents apart, and whether the head is a product."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.models.conftest import KINDS
from trnt.errors import TrntError
from trnt.models import transformers_probe as probe
from trnt.models.transformers_probe import Traits

# transformers' GPT-OSS makes its masks without the positions, so that packed documents see each other.
OWN_MASKS = {"gpt_oss"}
# Gemma 2 caps its logits and Granite divides them.
MORE_THAN_A_PRODUCT = {"gemma2", "granite"}


@pytest.mark.parametrize("kind", KINDS)
def test_documents_are_apart_and_a_second_one_is_as_if_alone(kind: str, hub_folder: Callable[..., Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(hub_folder(kind), dtype=torch.float32)
    traits = probe.look(model)
    assert traits == Traits(kind in OWN_MASKS, kind not in MORE_THAN_A_PRODUCT)
    model.eval()
    ids = torch.randint(4096, (2, 40), generator=torch.Generator().manual_seed(5))
    where = torch.cat([torch.arange(13), torch.arange(27)]).repeat(2, 1)
    with torch.no_grad():
        together = probe.run(model, ids, where, traits)
        alone = model(input_ids=ids[:, 13:], use_cache=False).logits
    # fp32 sums over other lengths
    assert (together[:, 13:] - alone).abs().max() <= 1e-5 * alone.abs().max()


def test_the_mode_is_as_it_was(hub_folder: Callable[..., Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(hub_folder("llama"), dtype=torch.float32)
    for training in (True, False):
        model.train(training)
        probe.look(model)
        assert model.training == training


def test_a_model_that_mixes_documents_is_refused(hub_folder: Callable[..., Path], monkeypatch: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(hub_folder("llama"), dtype=torch.float32)
    plain = model.model.forward

    def leaking(**inputs: Any) -> Any:
        inputs["attention_mask"] = inputs["position_ids"] = None
        return plain(**inputs)

    monkeypatch.setattr(model.model, "forward", leaking)
    with pytest.raises(TrntError, match="packed documents see each other in LlamaForCausalLM"):
        probe.look(model)
