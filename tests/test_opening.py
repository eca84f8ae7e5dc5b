"""What a user may name as a checkpoint, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from trnt import training
from trnt.errors import TrntError, UsageError
from trnt.opening import open_checkpoint


def change(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))


def test_the_config_says_what_it_is_and_the_folder_s_name_does_not(
    released: Callable[..., Path], tmp_path: Path
) -> None:
    folder = released("a name with spaces", experts=4)
    link = tmp_path / "link"
    link.symlink_to(folder)
    for name in (str(folder), f"{folder}/", str(link)):
        opened = open_checkpoint(name)
        assert (opened.entry.size.num_layers, opened.entry.size.num_experts) == (3, 4)
        assert opened.assets is not None
        assert (opened.assets / "tokenizer.json").is_file()


def test_a_run_and_its_steps_know_their_model(settings: Callable[..., Any], tmp_path: Path) -> None:
    training.train(settings(steps=2, save_every=1), as_json=False)
    for name in ("run", "run/checkpoint", "run/checkpoint/step-1"):
        opened = open_checkpoint(str(tmp_path / name))
        assert opened.entry.size.num_layers == 1
        assert opened.config["model_type"] == "qwen3"


SPOILED = {
    "another family": ({"model_type": "bert"}, "model_type 'bert'"),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, r"quantised \(fp8\)"),
    "two thetas": ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0, "rope_type": "default"}}, "rope_theta 5"),
    "more layers": ({"num_hidden_layers": 4, "layer_types": None}, r"missing model\.layers\.3"),
    "fewer layers": ({"num_hidden_layers": 2, "layer_types": None}, r"unexpected model\.safetensors: model\.layers\.2"),
    "another width": ({"hidden_size": 32}, r"is \[4096, 64\], not \[4096, 32\]"),
    "tied, and a head of its own": ({"tie_word_embeddings": True}, "differs"),
}


@pytest.mark.parametrize("case", SPOILED.values(), ids=SPOILED.keys())
def test_a_config_that_does_not_fit_is_one_line(
    released: Callable[..., Path], case: tuple[dict[str, Any], str]
) -> None:
    folder = released()
    change(folder, **case[0])
    with pytest.raises(TrntError, match=case[1]) as caught:
        open_checkpoint(str(folder))
    assert "\n" not in caught.value.cause
    assert caught.value.fix


def test_a_config_with_a_field_missing_names_it(released: Callable[..., Path]) -> None:
    folder = released()
    config = json.loads((folder / "config.json").read_text())
    del config["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(TrntError, match="has no vocab_size"):
        open_checkpoint(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(TrntError, match=r"has no config\.json"):
        open_checkpoint(str(folder))


def test_weights_from_elsewhere_need_a_config(released: Callable[..., Path], tmp_path: Path) -> None:
    folder = released()
    opened = open_checkpoint(str(folder))
    from trnt.checkpoint import mapping
    from trnt.checkpoint.start import fill

    state = {name: torch.zeros(shape) for name, shape in mapping.native_shapes(opened.entry).items()}
    fill(state, opened.source, opened.entry)
    dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    with pytest.raises(TrntError, match="does not say which model") as caught:
        open_checkpoint(str(tmp_path / "theirs"))
    assert "--config" in caught.value.fix
    assert open_checkpoint(str(tmp_path / "theirs"), config=str(folder)).entry.size == opened.entry.size
    with pytest.raises(UsageError, match=r"no config\.json at"):
        open_checkpoint(str(tmp_path / "theirs"), config=str(tmp_path))


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, released: Callable[..., Path]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no checkpoint"):
        open_checkpoint(str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="no folder"):
        open_checkpoint(str(tmp_path / "nowhere"))
    folder = released()
    with pytest.raises(UsageError, match="is a file"):
        open_checkpoint(str(folder / "config.json"))
    shutil.rmtree(folder)
