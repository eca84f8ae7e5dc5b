"""The option table of `trnt train` as Typer's parameters, for the commands that take them, and back as words."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trnt.options import BY_NAME, OPTIONS, flag_of

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


def words(given: Mapping[str, Any]) -> list[str]:
    """The flags that `given` came from, as the words of a command line; None is not given."""
    found: list[str] = []
    for name, value in given.items():
        if value is None:
            continue
        flag = flag_of(name)
        if BY_NAME[name].kind is bool:
            found.append(flag if value else f"--no-{flag[2:]}")
        else:
            found += [flag, str(value)]
    return found
