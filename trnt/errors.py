"""What can go wrong because of the user or the machine, and what to type then.

Every error a user can cause is a `TrntError`: one line with the cause, one line with the fix, and a documented exit
code. `cli.main` prints it; a traceback appears only with `--debug`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130
TERMINATED = 143

EXIT_CODES = {
    OK: "done",
    FAILED: "found something wrong, or failed",
    USAGE: "wrong usage: an option, a name or a value",
    INTERRUPTED: "stopped by Ctrl-C (training: after finishing the step and saving)",
    TERMINATED: "terminated by SIGTERM (training: after finishing the step and saving)",
}


class TrntError(Exception):
    """A failure with a cause and a way out.

    cause: one line, no full stop needed. fix: what to type or change, one line. exit_code: see `EXIT_CODES`.
    """

    def __init__(self, cause: str, fix: str, exit_code: int = FAILED) -> None:
        super().__init__(cause)
        self.cause = cause
        self.fix = fix
        self.exit_code = exit_code


class UsageError(TrntError):
    """Wrong usage: exit code 2."""

    def __init__(self, cause: str, fix: str) -> None:
        super().__init__(cause, fix, USAGE)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that begins with `name` or is most like it, or None when nothing is near."""
    names = list(known)
    if len(name) > 2:
        begun = sorted((n for n in names if n.startswith(name)), key=len)
        if begun:
            return begun[0]
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return found[0] if found else None


def unknown(kind: str, name: str, known: Iterable[str], *, listed_by: str | None = None) -> UsageError:
    """The error for a name that does not exist: the nearest name, else the list or what lists it."""
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return UsageError(f"unknown {kind} '{name}'", f"did you mean '{near}'?")
    if listed_by is not None:
        return UsageError(f"unknown {kind} '{name}'", f"'{listed_by}' lists them")
    listing = ", ".join(names[:24]) + (", ..." if len(names) > 24 else "")
    return UsageError(f"unknown {kind} '{name}'", f"choose one of: {listing}")
