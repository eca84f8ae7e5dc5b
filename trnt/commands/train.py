"""`trnt train`: read the options, resolve, train, say how it went."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from trnt.options import OPTIONS, flag_of

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def command(context: typer.Context, **given: Any) -> None:
    """Train a language model on text, on CPU, Trainium or CUDA.

    Without options: a small Qwen3 mixture of experts on the bundled novels. A run folder holds everything:
    checkpoints, metrics.jsonl, TensorBoard events, loss.png, and a recipe that runs the same again. The same command
    goes on where a stopped run with --out was. Ctrl-C finishes the step and saves.

    torchtitan's own dotted options work unchanged, such as --training.max_norm 0.5 or --optimizer.implementation
    foreach. Order: flag, TRNT_* variable, --recipe, user config, default; --print-config shows each value's origin.

    Examples:
      trnt train --recipe laptop
      trnt train --model qwen3-tiny --data notes/ --steps 200 --out runs/notes
      trnt train --model qwen3-30b-a3b --layers 4 --experts 64 --dry-run
    """
    from trnt import config, training

    special = {name: given.pop(name) for name in ("recipe", "set_", "print_config", "dry_run", "json_")}
    flags = {name: value for name, value in given.items() if value is not None}
    settings = config.resolve(flags, arguments=context.args, sets=special["set_"] or (), recipe=special["recipe"])
    if special["print_config"]:
        training.print_config(settings, as_json=special["json_"])
    elif special["dry_run"]:
        training.dry_run(settings, as_json=special["json_"])
    else:
        code = training.train(settings, as_json=special["json_"])
        if code:
            raise typer.Exit(code)


def signature() -> inspect.Signature:
    """The command's parameters: one per row of the option table, and those that are about the command itself."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
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
        )
        parameters.append(
            inspect.Parameter(option.name, keyword, default=None, annotation=Annotated[kind | None, info])
        )
    for name, kind, default, info in OWN:
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, info]))
    return inspect.Signature(parameters)


METAVARS = {int: "N", float: "X", str: "TEXT"}
OWN: tuple[tuple[str, Any, Any, Any], ...] = (
    (
        "recipe",
        str | None,
        None,
        typer.Option(
            "--recipe",
            help="A recipe file, or the name of a shipped one: laptop",
            rich_help_panel="Settings",
            metavar="TOML",
        ),
    ),
    (
        "set_",
        list[str] | None,
        None,
        typer.Option(
            "--set", help="dotted.key=value, as often as needed", rich_help_panel="Settings", metavar="KEY=VALUE"
        ),
    ),
    (
        "print_config",
        bool,
        False,
        typer.Option(
            "--print-config",
            help="Show every option, its value and its origin; train nothing",
            rich_help_panel="Settings",
        ),
    ),
    (
        "dry_run",
        bool,
        False,
        typer.Option(
            "--dry-run",
            help="Check everything and show memory and time needed; train nothing",
            rich_help_panel="Settings",
        ),
    ),
    ("json_", bool, False, typer.Option("--json", help="The result as JSON on stdout", rich_help_panel="Settings")),
)

command.__signature__ = signature()  # type: ignore[attr-defined]
command.__annotations__ = {p.name: p.annotation for p in signature().parameters.values()}
