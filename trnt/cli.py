"""The Typer app: global options, lazily loaded commands, plain help, and the one place where errors end.

Help and completion load neither torch nor rich: a command's module is imported when that command is named.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from trnt import __version__, console, errors
from trnt.errors import TrntError, UsageError, nearest

try:
    from typer import _click as click  # typer 0.26 and newer carry their own
except ImportError:
    import click  # type: ignore[no-redef]


@dataclass(frozen=True)
class Command:
    """Where a command lives, and its line in `trnt --help`."""

    module: str
    help: str


COMMANDS: dict[str, Command] = {
    "doctor": Command("trnt.commands.doctor", "Check that this machine is ready, or say what to type to fix it"),
    "models": Command("trnt.commands.models", "List the models, or show one: parameters, context, memory"),
    "train": Command("trnt.commands.train", "Train a language model on text"),
    "launch": Command("trnt.commands.launch", "Write the script that trains on a cluster: Slurm, Kubernetes or ssh"),
    "convert": Command("trnt.commands.convert", "Turn a checkpoint into torch DCP or Hugging Face files, streamed"),
    "verify": Command("trnt.commands.verify", "Read a checkpoint through: checksums, NaN, differences from another"),
    "export": Command("trnt.commands.export", "Write a trained model as a Hugging Face folder"),
    "bench": Command("trnt.commands.bench", "Measure the kernels against a reference and this machine's limits"),
    "completion": Command("trnt.commands.completion", "Print the completion script for bash, zsh or fish"),
}
EXAMPLES = """\
Examples:
  trnt doctor
  trnt train --recipe laptop
  trnt train --model qwen3-tiny --data notes/ --steps 200 --out runs/notes
  trnt export --to hf
  trnt convert Qwen/Qwen3-0.6B checkpoints/qwen3-0.6b
  trnt bench"""
COMPLETE = "_TRNT_COMPLETE"  # the variable in which completion scripts ask
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
WIDTH = 110  # of help, whatever the terminal: wrapped text stays readable, piped text is never cut


class PlainCommand(TyperCommand):
    """A command whose help groups options in panels, in plain text, with the docstring's lines as written."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        description, _, examples = (self.help or "").partition("\nExamples:")
        with formatter.indentation():
            for paragraph in description.strip().split("\n\n"):
                formatter.write_paragraph()
                formatter.write_text(" ".join(paragraph.split()))
        if examples:
            formatter.write("\nExamples:\n" + "\n".join(f"  {x.strip()}" for x in examples.strip().splitlines()) + "\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            panel = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
            panels.setdefault(panel, []).append(record)
        for panel, records in sorted(panels.items(), key=lambda item: item[0] == "Options"):
            with formatter.section(panel):
                formatter.write_dl(records, col_max=38)

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """The global flags are understood after the command too."""
        for flag in ("--debug", "--quiet"):
            if flag in args:
                args = [word for word in args if word != flag]
                console.configure(debug=flag == "--debug" or console.debugging(), quiet=flag == "--quiet")
        return super().make_context(info_name, args, parent, **extra)


class LazyGroup(TyperGroup):
    """Commands are known by name; their modules load when they are used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name].module)
        one = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
        settings = {**HELP_OPTIONS, "terminal_width": WIDTH, **getattr(module, "CONTEXT", {})}
        one.command(cmd_name, cls=PlainCommand, context_settings=settings)(module.command)
        command = typer.main.get_command(one)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = nearest(args[0], COMMANDS)
            fix = f"did you mean 'trnt {near}'?" if near else "'trnt --help' lists the commands"
            raise UsageError(f"unknown command '{args[0]}'", fix)
        return super().resolve_command(ctx, args)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        with formatter.indentation():
            formatter.write_paragraph()
            formatter.write_text(" ".join((self.help or "").split()))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in COMMANDS.items()])
        records = [record for p in self.get_params(ctx) if (record := p.get_help_record(ctx)) is not None]
        with formatter.section("Options"):
            formatter.write_dl(records)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in errors.EXIT_CODES.items()])
        formatter.write("\n" + EXAMPLES + "\n")


app = typer.Typer(
    name="trnt",
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={**HELP_OPTIONS, "terminal_width": WIDTH},
)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error"),
    quiet: bool = typer.Option(False, "--quiet", help="No messages and no progress, only warnings, errors and results"),
    version: bool = typer.Option(False, "--version", help="Show the version"),
) -> None:
    """Train large language models on AWS Trainium, from one command line. The default device is the CPU."""
    console.configure(debug=debug, quiet=quiet)
    if version:
        console.result(f"trnt {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        console.result(context.get_help())


def usage_error(error: Any) -> UsageError:
    """One of the parser's complaints as a cause and a fix, with the nearest option where a name is wrong."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "trnt"
    fix = f"'{path} --help' shows the usage"
    wrong = getattr(error, "option_name", None)
    if wrong and context:
        known = [name for parameter in context.command.get_params(context) for name in parameter.opts]
        near = nearest(wrong, known)
        fix = f"did you mean '{near}'?" if near else fix
        return UsageError(f"unknown option {wrong}", fix)
    return UsageError(" ".join(error.format_message().split()).rstrip("."), fix)


def run(arguments: list[str]) -> int:
    """Run one command line. Returns the exit code; every error is printed here and nowhere else."""
    try:
        code = typer.main.get_command(app).main(args=arguments, prog_name="trnt", standalone_mode=False)
        return code if isinstance(code, int) else errors.OK
    except typer.Exit as stop:
        return stop.exit_code
    except TrntError as error:
        return fail(error, error)
    except click.exceptions.UsageError as error:
        return fail(usage_error(error), error)
    except click.exceptions.ClickException as error:
        return fail(TrntError(error.format_message(), "run again with --debug"), error)
    except (KeyboardInterrupt, typer.Abort):
        console.note("stopped")
        return errors.INTERRUPTED
    except (BrokenPipeError, SystemExit):  # the parser turns a closed pipe into SystemExit
        return reader_gone()
    except Exception as error:
        said = str(error).strip().splitlines()
        cause = f"unexpected: {type(error).__name__}: {said[0] if said else 'no message'}"
        return fail(TrntError(cause, "run again with --debug for the traceback, and report it"), error)


def reader_gone() -> int:
    """The reader went away (`trnt ... | head`): say nothing, not even when Python closes stdout. Exit code 0."""
    if sys.__stdout__ is not None:
        sys.stdout = sys.__stdout__
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return errors.OK


def fail(shown: TrntError, error: BaseException) -> int:
    """Print an error, with its traceback when asked for. Returns its exit code."""
    import traceback

    from trnt import elastic

    trace = "".join(traceback.format_exception(error))
    if elastic.tell(shown, trace):  # one of several processes: whoever started it shows the first failure
        console.log(trace)
        if os.environ["RANK"] == "0":  # this terminal is the launcher's too
            console.log(f"error: {shown.cause}\nfix: {shown.fix}")
            return shown.exit_code
        sys.stderr.write(trace)
    elif console.debugging():
        sys.stderr.write(trace)
    console.error(shown)
    return shown.exit_code


def answer_shell() -> int:
    """Answer a shell's question for completions (its script set `_TRNT_COMPLETE`). Returns the exit code."""
    from typer.completion import completion_init, shell_complete

    completion_init()
    group: Any = typer.main.get_command(app)
    return shell_complete(group, {}, "trnt", COMPLETE, os.environ[COMPLETE])


def main() -> None:
    """The entry point of `trnt`."""
    if os.environ.get(COMPLETE):
        sys.exit(answer_shell())
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = reader_gone()
    sys.exit(code)
