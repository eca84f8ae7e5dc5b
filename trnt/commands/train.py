"""`trnt train`: read the options, resolve, train, say how it went."""

from __future__ import annotations

from typing import Any

import typer

from trnt.flags import SETTINGS, give, signature

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


OWN: tuple[tuple[str, Any, Any, Any], ...] = (
    (
        "print_config",
        bool,
        False,
        typer.Option(
            "--print-config",
            help="Show every option, its value and its origin; train nothing",
            rich_help_panel=SETTINGS,
        ),
    ),
    (
        "dry_run",
        bool,
        False,
        typer.Option(
            "--dry-run",
            help="Check everything and show memory and time needed; train nothing",
            rich_help_panel=SETTINGS,
        ),
    ),
    ("json_", bool, False, typer.Option("--json", help="The result as JSON on stdout", rich_help_panel=SETTINGS)),
)

give(command, signature(OWN))
