"""The only place that prints: results to stdout (text or JSON), messages and progress to stderr.

Nothing here imports torch, and rich is imported only where something is drawn on a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trnt.errors import TrntError

SCHEMA_VERSION = 1
LINE_EVERY_S = 5.0  # between plain progress lines, where no bar can be drawn

_state = {"debug": False, "quiet": False}
_kept: list[Any] = []  # the file in which messages are kept, if any


def configure(*, debug: bool = False, quiet: bool = False) -> None:
    """Set by the global options of `trnt`."""
    _state["debug"] = debug
    _state["quiet"] = quiet


def silence() -> None:
    """Let this process say nothing but errors and warnings: another one of the same run speaks."""
    _state["quiet"] = True


def keep(path: Path) -> None:
    """Write every message to a file too, from now on."""
    _kept[:] = [path.open("a", encoding="utf-8")]


def log(text: str) -> None:
    """Write to the file of messages alone, if there is one."""
    for file in _kept:
        file.write(text if text.endswith("\n") else text + "\n")
        file.flush()


def debugging() -> bool:
    """Whether tracebacks are wanted."""
    return _state["debug"]


def is_terminal() -> bool:
    """Whether live progress may be drawn: stderr is a terminal that is not called dumb."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def colour(text: str, code: str, *, stream: Any = None) -> str:
    """`text` in an ANSI colour where the stream is a terminal and NO_COLOR is not set."""
    stream = stream or sys.stderr
    if not stream.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def result(text: str) -> None:
    """A result for people, on stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def result_json(value: dict[str, Any]) -> None:
    """A result for programs, on stdout: one JSON object, `schema_version` first."""
    result(json.dumps({"schema_version": SCHEMA_VERSION, **value}, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """A message for people, on stderr; `--quiet` silences it."""
    log(text)
    if not _state["quiet"]:
        sys.stderr.write(text if text.endswith("\n") else text + "\n")
        sys.stderr.flush()


def warn(text: str) -> None:
    """A warning, on stderr; `--quiet` does not silence it."""
    log(f"warning: {text}")
    sys.stderr.write(f"{colour('warning:', '33')} {text}\n")
    sys.stderr.flush()


def error(failure: TrntError) -> None:
    """A failure: its cause and its fix, on stderr."""
    log(f"error: {failure.cause}\nfix: {failure.fix}")
    sys.stderr.write(f"{colour('error:', '31;1')} {failure.cause}\n{colour('fix:', '36')} {failure.fix}\n")
    sys.stderr.flush()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns padded to their widest cell; never wrapped or cut, whatever the terminal's width."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def human_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def human_count(count: float) -> str:
    """1_906_000_000 -> '1.91 B'; counts of parameters and tokens."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f}"


def human_time(seconds: float) -> str:
    """75 -> '1:15'; 3675 -> '1:01:15'."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Ticker:
    """Progress of a long job: a bar on a terminal, else a plain line every few seconds. Made by `progress`."""

    def __init__(self, title: str, total: float | None, unit: str, live: Any) -> None:
        self._title, self._total, self._unit, self._live = title, total, unit, live
        self._task = live.add_task(title, total=total, detail="") if live is not None else None
        self._done = 0.0
        self._ended = False
        self._last_line = float("-inf")

    def advance(self, amount: float = 1, detail: str = "") -> None:
        """`amount` more is done; `detail` is shown beside the bar."""
        self.update(self._done + amount, detail)

    def update(self, done: float, detail: str = "") -> None:
        """`done` in all is done."""
        import time

        self._done = done
        if self._live is not None:
            self._live.update(self._task, completed=done, detail=detail)
        now = time.monotonic()
        ended = self._total is not None and done >= self._total and not self._ended
        self._ended = self._ended or ended
        if now - self._last_line >= LINE_EVERY_S or ended:
            self._last_line = now
            of = f"/{self._total:,.0f}" if self._total else ""
            say = note if self._live is None else log
            say(f"{self._title}: {done:,.0f}{of} {self._unit} {detail}".rstrip())


@contextmanager
def progress(title: str, total: float | None = None, unit: str = "") -> Iterator[Ticker]:
    """A progress display on stderr for the time of the block."""
    if not is_terminal() or _state["quiet"]:
        yield Ticker(title, total, unit, None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.detail}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as live:
        yield Ticker(title, total, unit, live)
