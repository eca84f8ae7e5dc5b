"""Which model a run begins with, by whose code, with which weights; what does not go together is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trnt import starting
from trnt.errors import TrntError, UsageError
from trnt.models import registry

Settings = Callable[..., Any]


def test_a_name_is_a_model_with_random_weights(settings: Settings) -> None:
    found = starting.begin(settings(model="Qwen/Qwen3-0.6B", layers=None))
    assert found.entry == registry.get("qwen3-0.6b")
    assert (found.weights, found.origin, found.note) == (None, None, None)


@pytest.mark.parametrize("backend", ["native", "transformers"])
def test_a_folder_named_as_model_gives_its_architecture_and_says_so(
    settings: Settings, released: Callable[..., Path], backend: str
) -> None:
    folder = released()
    found = starting.begin(settings(model=str(folder), layers=2, backend=backend))
    assert (found.entry.name, found.entry.size.num_layers, found.entry.size.hidden_size) == ("released", 2, 64)
    assert found.weights is None
    assert found.origin is not None
    assert found.origin.tokenizer == str(folder)
    assert f"--init-from {folder}" in (found.note or "")


@pytest.mark.parametrize("backend", ["native", "transformers"])
def test_init_from_gives_the_weights_too(settings: Settings, released: Callable[..., Path], backend: str) -> None:
    folder = released()
    found = starting.begin(settings(model=None, init_from=str(folder), layers=None, backend=backend))
    assert found.weights.path == folder
    assert (found.note, found.entry.size.num_layers) == (None, 3)


def test_a_name_has_a_config_for_transformers(settings: Settings) -> None:
    found = starting.begin(settings(model="qwen3-tiny-moe", layers=2, experts=8, backend="transformers"))
    assert found.origin is not None
    assert (found.origin.config["num_hidden_layers"], found.origin.config["num_experts"]) == (2, 8)
    assert found.entry.size.num_experts == 8


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"attn_implementation": "sdpa"}, "--attn-implementation is for --backend transformers"),
        ({"backend": "transformers", "moe_balance": "aux"}, "--moe-balance aux is for --backend native"),
        ({"backend": "transformers", "kernels": "nki-sim"}, "--kernels nki-sim is for --backend native"),
        ({"backend": "transformers", "model": "qwen3-tinny"}, "unknown model"),
        ({"backend": "transformers", "init_from": "x"}, "name two models"),
        ({"model": "./nowhere"}, "no such folder"),
        ({"model": "qwen3-tinny"}, "unknown model"),
    ],
)
def test_what_does_not_go_together(settings: Settings, given: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        starting.begin(settings(**given))


def test_folders_that_transformers_cannot_start_from(
    settings: Settings, released: Callable[..., Path], tmp_path: Path
) -> None:
    folder = released(experts=4)
    given = {"model": None, "layers": None, "backend": "transformers"}
    with pytest.raises(UsageError, match="--experts with --init-from"):
        starting.begin(settings(init_from=str(folder), experts=2, **given))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="the folder has no"):
        starting.begin(settings(model=str(tmp_path / "empty")))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(TrntError, match="quantised"):
        starting.begin(settings(init_from=str(folder), **given))
    from tests.test_converting import convert

    shutil.copytree(released("plain"), tmp_path / "copy")
    convert(tmp_path / "copy", tmp_path / "dcp")
    with pytest.raises(TrntError, match="is no Hugging Face folder"):
        starting.begin(settings(init_from=str(tmp_path / "dcp"), **given))


def test_a_hub_id_without_a_network_is_one_line(settings: Settings) -> None:
    with pytest.raises(TrntError, match="cannot be downloaded"):
        starting.begin(settings(model="nobody/nothing", backend="transformers"))
