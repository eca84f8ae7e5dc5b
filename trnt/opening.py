"""What a user named as a checkpoint: its files, its model, and the configs and tokenizer that belong to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trnt import runs
from trnt.checkpoint import assets
from trnt.checkpoint.dcp import METADATA, open_dcp
from trnt.checkpoint.dequantised import dequantised
from trnt.checkpoint.dtypes import CODES, DTYPES
from trnt.checkpoint.hf import is_hf, open_hf
from trnt.checkpoint.inspect import check_source, model_tensors
from trnt.checkpoint.source import Source
from trnt.checkpoint.wrapped import without
from trnt.errors import TrntError, UsageError
from trnt.models import hub, registry
from trnt.models.registry import ModelEntry, UnknownModel

ORIGIN = "origin"  # of a run: config and tokenizer of the released weights it started from


@dataclass(frozen=True)
class Opened:
    """A checkpoint that was found whole and of the model that it says."""

    source: Source
    entry: ModelEntry
    config: dict[str, Any]
    """config.json's content."""
    config_file: Path | None
    """The file it came from; None where trnt made it from the model's name."""
    assets: Path | None
    """The folder of tokenizer, generation config and the like."""
    notes: tuple[str, ...] = ()

    def cut(self, layers: int | None, experts: int | None) -> Opened:
        """The same files, of which only the first layers and experts are meant."""
        return replace(self, entry=self.entry.cut(layers, experts))


def open_checkpoint(name: str, *, revision: str | None = None, config: str | None = None) -> Opened:
    """Open a Hugging Face folder, a Hub id, a DCP folder, a run or a step of one; `config` overrides its config.json.

    Raises UsageError when it is none of these, TrntError with everything that is wrong with it.
    """
    source = open_files(name, revision)
    path = source.path
    if source.kind == "hf":
        return _checked(source, _config_file(config) or path / assets.CONFIG, path)
    step = path
    kept = step / assets.IN_DCP
    file = _config_file(config) or (kept / assets.CONFIG if (kept / assets.CONFIG).is_file() else None)
    if file is not None:
        return _checked(source, file, kept if kept.is_dir() else file.parent)
    return _of_run(source, step)


def open_files(name: str, revision: str | None = None) -> Source:
    """The files of a checkpoint, whatever model they hold. Raises as `open_checkpoint`."""
    path = hub.resolve(name, revision)
    if is_hf(path):
        return open_hf(path)
    return open_dcp(path if (path / METADATA).is_file() else _step_of(path))


def _config_file(config: str | None) -> Path | None:
    if config is None:
        return None
    path = Path(config)
    path = path / assets.CONFIG if path.is_dir() else path
    if not path.is_file():
        raise UsageError(f"no config.json at {config}", "name a config.json, or a folder that holds one")
    return path


def _step_of(path: Path) -> Path:
    try:
        return runs.find_step(path)
    except UsageError:
        found = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
        raise UsageError(
            f"{path} holds no checkpoint (it holds {found})",
            "name a folder with *.safetensors, a DCP folder with .metadata, or a run of trnt",
        ) from None


def _checked(source: Source, file: Path, kept: Path) -> Opened:
    config = assets.read_config(file)
    source, config, told = dequantised(source, config)
    source, config, more = without_prediction(source, config)
    try:
        entry = registry.from_hf_config(config, source.path.resolve().name)
    except KeyError as error:
        raise TrntError(f"{file} has no {error.args[0]}", "use the checkpoint's own config.json") from None
    notes = told + more + check_source(source, entry)
    said, held = config.get("dtype") or config.get("torch_dtype"), main_dtype(source)
    if said in CODES and said != held:
        notes.append(f"config.json says {said}, and the weights are {held}")
    return Opened(source, entry, config, file, kept, tuple(notes))


def without_prediction(source: Source, config: dict[str, Any]) -> tuple[Source, dict[str, Any], list[str]]:
    """Leave out the multi-token-prediction layers that follow the model's own, as (source, config, notes)."""
    count, layers = config.get("num_nextn_predict_layers") or 0, config.get("num_hidden_layers") or 0
    prefixes = tuple(f"model.layers.{layers + k}." for k in range(count))
    names = [name for name in source.tensors if count and name.startswith(prefixes)]
    if not count:
        return source, config, []
    notes = [f"{len(names)} tensors of the multi-token-prediction layer are left out"] if names else []
    return without(source, names), {**config, "num_nextn_predict_layers": 0}, notes


def main_dtype(source: Source) -> str:
    """torch's name of the dtype that most bytes of the model are in."""
    sizes: dict[str, int] = {}
    for info in model_tensors(source).values():
        sizes[info.dtype] = sizes.get(info.dtype, 0) + info.nbytes
    return DTYPES[max(sizes, key=lambda code: sizes[code])][0]


def _of_run(source: Source, step: Path) -> Opened:
    """A step of a run that `trnt train` made."""
    owner = step.resolve().parent.parent
    described = runs.read_run(owner)
    if described is None:
        raise UnknownModel(
            f"{step} does not say which model it holds", "add --config FOLDER, with the config.json of that model"
        )
    identity, origin, tokenizer = described["identity"], owner / ORIGIN, owner / "tokenizer"
    if identity.get("backend"):
        raise UnknownModel(
            f"{step} was trained with --backend {identity['backend']}, whose names trnt has no table for",
            "write it as a Hugging Face folder with 'trnt export'",
        )
    config = assets.read_config(origin / assets.CONFIG) if (origin / assets.CONFIG).is_file() else None
    whole = registry.get(identity["model"]) if config is None else registry.from_hf_config(config, identity["model"])
    entry = whole.cut(identity["layers"], identity["experts"] or None)
    notes = tuple(check_source(source, entry))
    if config is not None:  # started from released weights: everything they had that is still true
        return Opened(source, entry, assets.edited(config, entry, None), None, origin, notes)
    return Opened(source, entry, made_config(entry, tokenizer), None, tokenizer, notes)


def made_config(entry: ModelEntry, tokenizer: Path | None) -> dict[str, Any]:
    """config.json of a model that trnt knows by name."""
    from trnt.data.tokenizer import special_id

    eos = pad = None
    if tokenizer is not None and (tokenizer / "tokenizer.json").is_file():
        eos, pad = special_id(tokenizer, "eos_token"), special_id(tokenizer, "pad_token")
    config: dict[str, Any] = entry.family.hf_config(entry.size, dtype="float32", eos_id=eos, pad_id=pad)
    return config
