"""What a checkpoint folder holds beside weights: config, generation config, tokenizer, chat template, licence.

A Hugging Face folder has them at its top. A DCP folder has them in `hf/`, where no loader of weights looks, so that the
way back finds them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from trnt.checkpoint import manifest
from trnt.checkpoint.hf import INDEX
from trnt.errors import TrntError
from trnt.models import shared
from trnt.models.registry import ModelEntry

CONFIG = "config.json"
IN_DCP = "hf"
KEPT = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".md")
KEPT_NAMES = ("LICENSE", "NOTICE", "USE_POLICY")
LARGEST = 128 << 20  # bytes: larger files are weights under another name
# config.json's old key and new key for the same thing (transformers 5 writes the second).
DTYPE_KEYS = ("torch_dtype", "dtype")


def read_config(path: Path) -> dict[str, Any]:
    """A config.json. Raises TrntError when it is missing or no JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(found, dict)
    except FileNotFoundError:
        raise TrntError(f"{path.parent} has no {path.name}", "put the checkpoint's own config.json there") from None
    except (OSError, ValueError, AssertionError) as error:
        raise TrntError(f"cannot read {path}: {error or 'no JSON object'}", "download the file again") from None
    return dict(found)


def asset_files(folder: Path) -> list[Path]:
    """Everything that is carried over, config.json aside."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_file()
        and path.name not in (CONFIG, INDEX, manifest.NAME)
        and not path.name.endswith(".index.json")
        and (path.suffix in KEPT or path.name.startswith(KEPT_NAMES))
        and path.stat().st_size <= LARGEST
    ]


def copy_assets(source: Path | None, target: Path) -> None:
    """Copy them byte for byte."""
    if source is not None and source.is_dir():
        target.mkdir(exist_ok=True)
        for path in asset_files(source):
            shutil.copyfile(path, target / path.name)


def edited(config: dict[str, Any], entry: ModelEntry, dtype: str | None) -> dict[str, Any]:
    """A config.json for the first layers and experts and another dtype; everything else as it was.

    dtype: torch's name, None for unchanged. An unchanged config comes back equal.
    """
    size = entry.size
    found = dict(config)
    if size.num_layers < config["num_hidden_layers"]:
        found |= shared.shallower(config, size.num_layers)
    if size.num_experts and size.num_experts != entry.family.size_from_hf_config(config).num_experts:
        found |= dict.fromkeys(entry.family.EXPERT_KEYS, size.num_experts)
    if dtype is not None:
        keys = [key for key in DTYPE_KEYS if key in found] or ["dtype"]
        found |= dict.fromkeys(keys, dtype)
    return found


def write_config(config: dict[str, Any], original: Path | None, target: Path) -> None:
    """config.json; byte for byte the original where nothing changed."""
    target.mkdir(exist_ok=True)
    if original is not None and original.is_file() and read_config(original) == config:
        shutil.copyfile(original, target / CONFIG)
    else:
        (target / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
