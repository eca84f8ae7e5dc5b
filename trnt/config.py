"""Flags over environment over recipe over user config over defaults -> one set of options, each with its origin.

No torch here: wrong values, unknown names and unreadable data are found in the first second. Turning the result into
a torchtitan `Trainer.Config` is `assemble.py`'s work.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trnt.errors import UsageError, nearest, unknown
from trnt.options import ALIASES, BY_KEY, BY_NAME, OPTIONS, flag_of

RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Layer:
    """One source of settings: canonical key -> value, and what to call the source."""

    origin: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """All options, resolved. `extra` holds torchtitan's own dotted options that have no shorter name here."""

    values: dict[str, Any]
    origins: dict[str, str]
    extra: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[BY_NAME[name].key]

    def given(self, name: str) -> bool:
        """Whether somebody chose this option's value."""
        return self.origins[BY_NAME[name].key] != "default"

    def origin(self, name: str) -> str:
        """Where this option's value comes from."""
        return self.origins[BY_NAME[name].key]


def canonical(pairs: Sequence[tuple[str, Any]], origin: str) -> Layer:
    """Bring one source's settings to canonical keys: `seq_len` and `training.seq_len` are one.

    Raises UsageError for a name that is neither an option nor dotted, and for two different values of one key.
    """
    values: dict[str, Any] = {}
    seen: dict[str, str] = {}
    for raw, value in pairs:
        name = raw.replace("-", "_")
        if (
            "." not in name
            and name not in BY_NAME
            and name not in ALIASES
            and name not in ("dump_folder", "hf_assets_path")
        ):
            near = nearest(name, BY_NAME)
            fix = f"did you mean '{flag_of(near)}'?" if near else "'trnt train --help' lists the options"
            shown = flag_of(name) if origin == "flag" else f"'{raw}' in {origin}"
            raise UsageError(f"unknown option {shown}", fix)
        key = "tokenizer" if name == "hf_assets_path" else ALIASES.get(name) or name
        if key in values and values[key] != value:
            raise UsageError(
                f"{flag_of(seen[key])} and {flag_of(name)} are the same option with different values",
                "give only one of them",
            )
        values[key] = value
        seen[key] = name
    return Layer(origin, values)


def flatten(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """A TOML table as dotted pairs."""
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        pairs += flatten(value, f"{name}.") if isinstance(value, Mapping) else [(name, value)]
    return pairs


def dotted_arguments(arguments: Sequence[str]) -> list[tuple[str, Any]]:
    """`--a.b value`, `--a.b=value`, `--a.b` (true) and `--a.no_b` (false), as torchtitan's own command line reads them.

    Raises UsageError for a word that belongs to no option.
    """
    pairs: list[tuple[str, Any]] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            near = nearest(word, [flag_of(o.name) for o in OPTIONS])
            raise UsageError(
                f"unexpected argument '{word}'",
                f"did you mean '{near}'?" if near else "'trnt train --help' shows the usage",
            )
        name, equals, value = word[2:].partition("=")
        if equals:
            pairs.append((name, value))
        elif rest and not (rest[0].startswith("--") and len(rest[0]) > 2):
            pairs.append((name, rest.pop(0)))
        else:
            head, _, last = name.rpartition(".")
            negated = last.replace("-", "_").startswith("no_")
            pairs.append((f"{head}.{last[3:]}", "false") if negated and head else (name, "true"))
    return pairs


def set_arguments(items: Sequence[str]) -> list[tuple[str, Any]]:
    """`--set dotted.key=value`, repeated."""
    pairs: list[tuple[str, Any]] = []
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set takes dotted.key=value, got '{item}'", "for example --set training.max_norm=0.5")
        pairs.append((name.strip(), value))
    return pairs


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """A TOML file; every way it can be wrong is one line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the {what} {path}: {error.strerror}", "give a readable TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", f"correct the {what}") from None


def recipe_path(name: str) -> Path:
    """A file, or the name of a recipe shipped with trnt."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        if not path.is_file():
            raise UsageError(f"no recipe file {name}", "shipped recipes: " + ", ".join(recipe_names()))
        return path
    if name not in recipe_names():
        raise unknown("recipe", name, recipe_names())
    return RECIPES / f"{name}.toml"


def recipe_names() -> list[str]:
    """Names of the recipes shipped with trnt."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def user_config_path() -> Path:
    """`$XDG_CONFIG_HOME/trnt/config.toml`, else `~/.config/trnt/config.toml`."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "trnt" / "config.toml"


def resolve(
    flags: Mapping[str, Any],
    *,
    arguments: Sequence[str] = (),
    sets: Sequence[str] = (),
    recipe: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Merge all layers and check every value.

    flags: options given on the command line, by name. arguments: words Typer did not know (torchtitan's dotted
    options). sets: `--set` items. Raises UsageError for anything unknown or out of range.
    """
    environment = os.environ if environment is None else environment
    layers = [Layer("default", {option.key: option.default for option in OPTIONS})]
    user = user_config_path()
    if user.is_file():
        layers.append(canonical(flatten(read_toml(user, "user config")), f"user config {user}"))
    if recipe is not None:
        path = recipe_path(recipe)
        layers.append(canonical(flatten(read_toml(path, "recipe")), f"recipe {path.name}"))
    names = {f"TRNT_{name.upper()}": name for name in {**BY_NAME, **ALIASES}}
    layers += [
        canonical([(names[key], value)], key) for key, value in environment.items() if key in names and value != ""
    ]
    command_line = [*flags.items(), *dotted_arguments(arguments), *set_arguments(sets)]
    layers.append(canonical(command_line, "flag"))

    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.values.items():
            values[key], origins[key] = value, layer.origin
    for key, option in BY_KEY.items():
        if values[key] is not None:
            values[key] = option.check(option.name, values[key])
    extra = {key: values.pop(key) for key in list(values) if key not in BY_KEY}
    return Settings(values, origins, extra)


def render(settings: Settings) -> str:
    """The resolved options as a recipe that can be read back, each line with its origin."""
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment("trnt train --recipe THIS_FILE runs the same again"))
    for option in OPTIONS:
        value = settings[option.name]
        if value is None or (
            option.name == "model" and settings["init_from"] and settings.origin("model") == "default"
        ):
            continue  # the weights say which model they are
        item = tomlkit.item(value)
        item.comment(settings.origin(option.name))
        document.add(option.name, item)
    for key, value in sorted(settings.extra.items()):
        item = tomlkit.item(value)
        item.comment(settings.origins[key])
        document.add(key, item)
    return tomlkit.dumps(document)
