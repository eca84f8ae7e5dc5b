"""The option table of `trnt train` as Typer's parameters, for the commands that take them, and settings as words."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trnt.options import BY_NAME, OPTIONS, flag_of

if TYPE_CHECKING:
    from trnt.config import Settings

METAVARS = {int: "N", float: "X", str: "TEXT"}
SETTINGS = "Settings"
LAYERS: tuple[tuple[str, Any, Any, Any], ...] = (
    (
        "recipe",
        str | None,
        None,
        typer.Option(
            "--recipe",
            help="A recipe file, or the name of a shipped one: laptop",
            rich_help_panel=SETTINGS,
            metavar="TOML",
        ),
    ),
    (
        "set_",
        list[str] | None,
        None,
        typer.Option(
            "--set", help="dotted.key=value, as often as needed", rich_help_panel=SETTINGS, metavar="KEY=VALUE"
        ),
    ),
)


def signature(own: tuple[tuple[str, Any, Any, Any], ...], *, hidden: bool = False) -> inspect.Signature:
    """A command's parameters: `context`, one per row of the option table, recipe and set_, and the command's `own`.

    own: (name, type, default, what Typer says of it); one with an option's name takes its place. hidden: leave the
    table's out of the help.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    found = {"context": inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)}
    for option in OPTIONS:
        flag = flag_of(option.name)
        names = [f"{flag}/--no-{flag[2:]}"] if option.kind is bool and option.default else [flag]
        names += [flag_of(option.also)] if option.also else []
        kind = bool if option.kind is bool else str
        shown = "" if option.default in (None, -1, False) else f"  [default: {option.default}]"
        info = typer.Option(
            *names,
            help=option.help + shown,
            rich_help_panel=option.panel,
            show_default=False,
            metavar=METAVARS.get(option.kind),
            hidden=hidden,
        )
        found[option.name] = inspect.Parameter(
            option.name, keyword, default=None, annotation=Annotated[kind | None, info]
        )
    for name, kind, default, info in (*LAYERS, *own):
        found[name] = inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, info])
    return inspect.Signature(list(found.values()))


def give(command: Any, shape: inspect.Signature) -> None:
    """Let Typer see `command(context, **given)` with these parameters."""
    command.__signature__ = shape
    command.__annotations__ = {p.name: p.annotation for p in shape.parameters.values()}


def words(settings: Settings, without: tuple[str, ...] = ()) -> list[str]:
    """Everything that somebody chose, wherever it was said, as the words of a command line.

    Variables, recipes and the user's configuration are of this machine; another one is told what they came to.
    """
    found: list[str] = []
    for name, option in BY_NAME.items():
        if not settings.given(name) or name in without:
            continue
        flag, value = flag_of(name), settings[name]
        if option.kind is bool:
            found.append(flag if value else f"--no-{flag[2:]}")
        else:
            found += [flag, str(value)]
    for key, value in settings.extra.items():
        found += [f"--{key}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return found
