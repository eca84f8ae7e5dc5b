"""`trnt completion`: the script a shell loads, and the answers it asks for."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from trnt import console

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_TRNT_COMPLETE"


def command(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish", metavar="SHELL")],
) -> None:
    """Print the completion script of a shell.

    Load it from the shell's start-up file. The script asks trnt for the words, so it needs no update.

    Examples:
      trnt completion bash >> ~/.bashrc
      trnt completion zsh > ~/.zfunc/_trnt
      trnt completion fish > ~/.config/fish/completions/trnt.fish
    """
    console.result(script(shell))


def script(shell: str) -> str:
    """The completion script, from Typer's own templates. Raises UsageError for another shell."""
    from trnt.errors import unknown

    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    from typer._completion_shared import get_completion_script

    return get_completion_script(prog_name="trnt", complete_var=VARIABLE, shell=shell).rstrip() + "\n"


def answer() -> int:
    """Answer a shell's question for completions (the variable `_TRNT_COMPLETE` is set). Returns the exit code."""
    import typer.main
    from typer.completion import completion_init, shell_complete

    from trnt.cli import app

    completion_init()
    group: Any = typer.main.get_command(app)
    return shell_complete(group, {}, "trnt", VARIABLE, os.environ[VARIABLE])
