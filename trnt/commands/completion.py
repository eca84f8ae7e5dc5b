"""`trnt completion`: the script a shell loads. `cli.answer_shell` answers what it asks."""

from __future__ import annotations

from typing import Annotated

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
