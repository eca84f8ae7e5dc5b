"""What an option may be: checks that turn text into a value, or say in one line what is wrong and what to type."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from trnt.errors import UsageError, unknown

Check = Callable[[str, Any], Any]


def flag_of(name: str) -> str:
    """`seq_len` -> `--seq-len`; dotted names keep their underscores, as torchtitan writes them."""
    return f"--{name}" if "." in name else f"--{name.replace('_', '-')}"


def whole(least: int, *, also: int | None = None) -> Check:
    """A whole number of at least `least` (or exactly `also`)."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, str):
            try:
                value = int(value)
            except ValueError:
                raise UsageError(
                    f"{flag_of(name)} must be a whole number, got '{value}'", f"for example {flag_of(name)} 8"
                ) from None
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"{flag_of(name)} must be a whole number, got {value!r}", f"for example {flag_of(name)} 8")
        if value < least and value != also:
            extra = "" if also is None else f" (or {also})"
            raise UsageError(
                f"{flag_of(name)} must be at least {least}{extra}, got {value}",
                f"use {flag_of(name)} {max(least, 1)} or more",
            )
        return value

    return check


def count_or_auto(name: str, value: Any) -> int:
    """A whole number of at least 1; `auto` or -1 is -1."""
    return -1 if value in ("auto", "-1", -1) else whole(1)(name, value)


def positive(name: str, value: Any) -> float:
    """A finite number above zero."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"{flag_of(name)} must be a number, got {value!r}", f"for example {flag_of(name)} 3e-4"
        ) from None
    if not math.isfinite(number) or number <= 0:
        raise UsageError(
            f"{flag_of(name)} must be a finite number above zero, got {value}", f"for example {flag_of(name)} 3e-4"
        )
    return number


def one_of(*choices: str) -> Check:
    """One of a few words."""

    def check(name: str, value: Any) -> str:
        if value not in choices:
            raise unknown(f"value for {flag_of(name)}", str(value), choices)
        return str(value)

    return check


def text(name: str, value: Any) -> str:
    """Any text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{flag_of(name)} must not be empty", f"give {flag_of(name)} a value, or leave it out")
    return value


def switch(name: str, value: Any) -> bool:
    """true or false."""
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() in words:
        return words[str(value).lower()]
    raise UsageError(
        f"{flag_of(name)} must be true or false, got {value!r}", f"use {flag_of(name)} or --no-{name.replace('_', '-')}"
    )


UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def size_in_bytes(name: str, value: Any) -> int:
    """`5GB`, `512MiB` or a number of bytes, at least one."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
    unit = UNITS.get(match.group(2).upper()) if match else None
    count = int(float(match.group(1)) * unit) if match and unit else 0
    if count < 1:
        raise UsageError(f"{flag_of(name)} must be a size, got '{value}'", f"for example {flag_of(name)} 5GB or 512MiB")
    return count
