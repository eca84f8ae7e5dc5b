"""What a run begins with: which model, by whose code, with which weights, and the config and tokenizer it came with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trnt.config import Settings
from trnt.errors import TrntError, UsageError
from trnt.models import registry
from trnt.models.registry import ModelEntry

TRANSFORMERS = "transformers"


@dataclass(frozen=True)
class Origin:
    """What a model's folder holds beside weights; kept with the run for its export."""

    config: dict[str, Any]
    config_file: Path | None
    """The file that `config` was read from; None where trnt made it."""
    assets: Path | None
    """The folder of tokenizer, generation config and the like."""

    @property
    def tokenizer(self) -> str | None:
        """The folder, where it holds a tokenizer."""
        return str(self.assets) if self.assets is not None and (self.assets / "tokenizer.json").is_file() else None


@dataclass(frozen=True)
class Beginning:
    """A model that a run can begin with."""

    entry: ModelEntry
    """Cut to the layers and experts that are asked for."""
    weights: Any = None
    """The weights to start from (`checkpoint.source.Source`), None for random ones."""
    origin: Origin | None = None
    """None for a model that is known by its name."""
    note: str | None = None
    """What the user should know of it."""


def begin(settings: Settings) -> Beginning:
    """The model of --model or --init-from by the code of --backend.

    Raises UsageError for options that do not go together, TrntError with what is wrong with a folder's files.
    """
    if settings["backend"] == TRANSFORMERS:
        return with_transformers(settings)
    if settings["attn_implementation"] is not None:
        raise UsageError("--attn-implementation is for --backend transformers", "leave it out, or add the backend")
    if settings["init_from"] is not None:
        opened = opened_weights(settings)
        origin = Origin(opened.config, opened.config_file, opened.assets)
        return Beginning(cut(opened.entry, settings), opened.source, origin)
    folder = folder_of(settings["model"])
    if folder is None:
        return Beginning(cut(registry.get(settings["model"]), settings))
    origin = read_origin(folder)
    entry = registry.from_hf_config(origin.config, folder.resolve().name)
    return Beginning(cut(entry, settings), None, origin, random_weights(folder))


def cut(entry: ModelEntry, settings: Settings) -> ModelEntry:
    """The first --layers and --experts."""
    return entry.cut(settings["layers"], settings["experts"])


def folder_of(model: str) -> Path | None:
    """The folder that --model names; None for a name. A path is told by a separator or by being there.

    Raises UsageError for a path that is no folder with a config.json.
    """
    from trnt.checkpoint.assets import CONFIG

    path = Path(model).expanduser()
    if (path / CONFIG).is_file():
        return path
    if path.is_dir() and path.name not in registry.names():
        raise UsageError(f"--model {model}: the folder has no {CONFIG}", "name a folder with one, or a model's name")
    if model.startswith((".", "/", "~")):
        raise UsageError(f"--model {model}: no such folder", "name a folder with a config.json, or a model's name")
    return None


def read_origin(folder: Path) -> Origin:
    """A folder's config and the place of its tokenizer."""
    from trnt.checkpoint import assets

    file = folder / assets.CONFIG
    return Origin(assets.read_config(file), file, folder)


def random_weights(folder: Path) -> str:
    """What to say when only the architecture of a folder is used."""
    return f"random weights for the architecture in {folder}; --init-from {folder} starts from the weights there"


def opened_weights(settings: Settings) -> Any:
    """What --init-from names, opened and checked, for the native backend.

    Raises UsageError when --model was given too and is another model, TrntError with what is wrong with the files.
    """
    from trnt.opening import open_checkpoint

    opened = open_checkpoint(settings["init_from"], revision=settings["revision"])
    if settings.origin("model") == "default":
        return opened
    named = registry.get(settings["model"])
    if named.family is not opened.entry.family or not same_width(named.size, opened.entry.size):
        raise UsageError(
            f"--model {named.name} is not the model in {settings['init_from']}", "leave --model out: the folder says it"
        )
    return replace(opened, entry=replace(opened.entry, name=named.name))


def same_width(a: Any, b: Any) -> bool:
    """Whether two sizes differ in depth and number of experts at most."""
    return all(getattr(a, name) == getattr(b, name) for name in ("hidden_size", "num_heads", "head_dim", "vocab_size"))


def with_transformers(settings: Settings) -> Beginning:
    """Any AutoModelForCausalLM. Raises UsageError for options of the native backend, TrntError for a wrong folder."""
    from trnt.models import transformers as family

    for option, free in (("moe_balance", ("none",)), ("kernels", ("auto", "torch"))):
        if settings[option] not in free:
            raise UsageError(
                f"--{option.replace('_', '-')} {settings[option]} is for --backend native", "leave one of them out"
            )
    weights = note = None
    if settings["init_from"] is not None:
        if settings.origin("model") != "default":
            raise UsageError("--model and --init-from name two models", "leave --model out: the folder says it")
        if settings["experts"] is not None:
            raise UsageError(
                "--experts with --init-from is for --backend native",
                "cut the weights with trnt convert --experts first",
            )
        weights = files_for_transformers(settings["init_from"], settings["revision"])
        name, origin = weights.path.resolve().name, read_origin(weights.path)
    else:
        name, origin, note = described(settings["model"], settings["revision"])
    size = family.from_config(origin.config, settings["attn_implementation"])
    entry = cut(ModelEntry(name, family, size), settings)
    return Beginning(entry, weights, replace(origin, config=entry.size.config), note)


def files_for_transformers(name: str, revision: str | None) -> Any:
    """A Hugging Face folder or Hub id whose files are whole. Raises TrntError for what from_pretrained cannot read."""
    from trnt.opening import open_files

    source = open_files(name, revision)
    if source.kind != "hf":
        raise TrntError(
            f"{name} is no Hugging Face folder, and --backend transformers reads only those",
            f"write one with 'trnt export' or 'trnt convert {name} --to hf'",
        )
    return source


def described(model: str, revision: str | None) -> tuple[str, Origin, str | None]:
    """(name, config and tokenizer, note) of a name that trnt knows, a folder, or a Hub id."""
    from trnt.models import hub

    folder = folder_of(model)
    if folder is not None:
        return folder.resolve().name, read_origin(folder), random_weights(folder)
    try:
        entry = registry.get(model)
    except UsageError:
        if not hub.HUB_ID.fullmatch(model):
            raise
        folder = hub.resolve(model, revision, weights=False)
        return model.rpartition("/")[2], read_origin(folder), random_weights(Path(model))
    return entry.name, Origin(entry.family.hf_config(entry.size, dtype="float32"), None, None), None
