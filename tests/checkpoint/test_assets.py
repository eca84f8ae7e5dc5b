"""What belongs to weights is carried over byte for byte; a config changes only where the weights did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trnt.checkpoint import assets
from trnt.errors import TrntError
from trnt.models import qwen3, registry

CONFIG = {
    **qwen3.hf_config(qwen3.SIZES["qwen3-30b-a3b"], dtype="bfloat16"),
    "layer_types": ["full_attention"] * 48,
    "mlp_only_layers": [],
    "something_else": {"kept": True},
}


def test_an_uncut_config_stays_as_it_is() -> None:
    entry = registry.from_hf_config(CONFIG, "x")
    assert assets.edited(CONFIG, entry, None) == CONFIG


def test_a_cut_config_says_so_everywhere() -> None:
    entry = registry.from_hf_config(CONFIG, "x").cut(4, 64)
    found = assets.edited(CONFIG, entry, "float32")
    assert (found["num_hidden_layers"], found["num_experts"], found["num_local_experts"]) == (4, 64, 64)
    assert (found["layer_types"], found["max_window_layers"]) == (["full_attention"] * 4, 4)
    assert (found["dtype"], found["something_else"]) == ("float32", {"kept": True})
    assert registry.from_hf_config(found, "x").size == entry.size


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_the_dtype_is_written_under_the_key_that_was_there(key: str) -> None:
    config: dict[str, Any] = {name: value for name, value in CONFIG.items() if name != "dtype"} | {key: "bfloat16"}
    found = assets.edited(config, registry.from_hf_config(config, "x"), "float16")
    assert {name: found.get(name) for name in assets.DTYPE_KEYS if name in found} == {key: "float16"}


def test_files_are_carried_over_and_weights_are_not(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    kept = ("tokenizer.json", "chat_template.jinja", "merges.txt", "LICENSE", "generation_config.json")
    left = ("model.safetensors", "model.safetensors.index.json", "config.json", "trnt-manifest.jsonl", "code.py")
    for name in kept + left:
        (source / name).write_bytes(name.encode() + b"\xff\r\n")
    assets.copy_assets(source, tmp_path / "target")
    assert {p.name for p in (tmp_path / "target").iterdir()} == set(kept)
    assert (tmp_path / "target" / "LICENSE").read_bytes() == b"LICENSE\xff\r\n"


def test_an_unchanged_config_is_the_same_bytes(tmp_path: Path) -> None:
    original = tmp_path / "config.json"
    original.write_text('{"a":1,   "b": [2]}')
    assets.write_config({"b": [2], "a": 1}, original, tmp_path / "same")
    assert (tmp_path / "same" / "config.json").read_bytes() == original.read_bytes()
    assets.write_config({"a": 2}, original, tmp_path / "changed")
    assert json.loads((tmp_path / "changed" / "config.json").read_text()) == {"a": 2}


@pytest.mark.parametrize("content", [None, "[]", "{", "\x00"])
def test_a_config_that_cannot_be_read_is_one_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(TrntError, match=r"config\.json"):
        assets.read_config(tmp_path / "config.json")
