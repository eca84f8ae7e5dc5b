"""Run folders: what is in one, which run an `--out` holds, and where to resume from. No torch.

RUN/run.json          who this run is (compared on resume) and the command that made it
RUN/recipe.toml       every option with its origin; `trnt train --recipe` runs it again
RUN/config.json       the whole torchtitan config
RUN/tokenizer/        the tokenizer's files, for the export
RUN/metrics.jsonl     one line per step        RUN/tb/        the same as TensorBoard events
RUN/loss.png          the picture              RUN/summary.json  the end
RUN/checkpoint/step-N/        RUN/logs/         one file per process, where there are several
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnt import console
from trnt.errors import TrntError, UsageError

LOGS = "logs"  # made by the launcher before the run is
STEP = re.compile(r"step-(\d+)")


def steps(folder: Path) -> dict[int, Path]:
    """Every folder named exactly `step-N`, complete or not, by N, in rising order."""
    found: dict[int, Path] = {}
    if folder.is_dir():
        for path in folder.iterdir():
            match = STEP.fullmatch(path.name)
            if match and path.is_dir():
                found[int(match.group(1))] = path
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Start:
    """Where a training writes and what it starts from."""

    out: Path
    """The run's folder."""
    resume: bool
    """Whether to go on from a step in `out`."""
    step: int | None = None
    """That step; None for the newest complete one."""
    source: Path | None = None
    """A step folder of another run to start from; it is only read."""

    @property
    def fresh(self) -> bool:
        """Whether no step exists that is gone on with."""
        return not self.resume and self.source is None


def read_run(folder: Path) -> dict[str, Any] | None:
    """A run's run.json, or None when the folder holds no run."""
    path = folder / "run.json"
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise TrntError(f"cannot read {path}: {error}", "restore the file, or choose another --out") from None


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write under a temporary name, then rename, so that the file is never half there, nor the half left behind."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl; a last line cut off by a kill is dropped."""
    rows: list[dict[str, Any]] = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return rows


def new_run(runs_dir: str, model: str) -> Path:
    """A folder name that is not taken: RUNS/MODEL-YYYYMMDD-HHMMSS."""
    base = Path(runs_dir) / f"{model}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path


def newest_run(runs_dir: str) -> Path:
    """The run under `runs_dir` that saved or changed last. Raises TrntError when there is none with a checkpoint."""
    root = Path(runs_dir)
    runs = [path.parent for path in root.glob("*/run.json") if steps(path.parent / "checkpoint")]
    if not runs:
        raise TrntError(f"no run with a checkpoint under {root}", "train one with 'trnt train', or name its folder")
    return max(runs, key=lambda run: max(p.stat().st_mtime_ns for p in (run / "checkpoint").iterdir()))


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What two runs' identities disagree on, as `key old -> new`."""
    return [f"{key} {old.get(key)} -> {new[key]}" for key in new if old.get(key) != new[key]]


def choose_start(
    *, out: str | None, runs_dir: str, resume: str, force: bool, model: str, identity: dict[str, Any]
) -> Start:
    """Decide where to write and what to resume. Nothing is written, but for moving a replaced run aside.

    Raises UsageError when `out` holds another run or other files, and when the wanted run or step does not exist.
    """
    source = None if resume in ("auto", "never") else find_step(Path(resume))
    if out is None:
        return Start(new_run(runs_dir, model), resume=False, source=source)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {out} is a file", "name a folder")
    run = read_run(folder)
    if run is None:
        if folder.is_dir() and any(path.name != LOGS for path in folder.iterdir()):
            raise UsageError(f"--out {out} holds files that are not a run of trnt", "choose an empty or a new folder")
        return Start(folder, resume=False, source=source)
    if source is not None and source.parent.parent.resolve() == folder.resolve():
        step = STEP.fullmatch(source.name)
        assert step is not None
        refuse_other_run(folder, run, identity)
        return Start(folder, resume=True, step=int(step.group(1)))
    if resume == "auto" and not (changed := differences(run.get("identity", {}), identity)):
        return Start(folder, resume=True)
    if force:
        aside = folder.with_name(f"{folder.name}.replaced-{time.strftime('%Y%m%d-%H%M%S')}")
        os.replace(folder, aside)
        console.note(f"the run that was in {folder} is now {aside}")
        return Start(folder, resume=False, source=source)
    if resume == "auto":
        refuse_other_run(folder, run, identity)
        raise AssertionError(changed)
    raise UsageError(f"--out {out} already holds a run", "choose another --out, or --force to move that run aside")


def refuse_other_run(folder: Path, run: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raise UsageError when the run in `folder` is another than the one described by `identity`."""
    changed = differences(run.get("identity", {}), identity)
    if changed:
        raise UsageError(
            f"{folder} holds another run ({'; '.join(changed)})",
            "use that run's options to resume it, choose another --out, or --force to move it aside",
        )


def find_step(path: Path) -> Path:
    """The step folder that `path` means: itself, or the newest of a run folder or of its checkpoint folder.

    Raises UsageError when nothing is there, naming the steps that exist.
    """
    if STEP.fullmatch(path.name):
        if path.is_dir():
            return path
        known = ", ".join(p.name for p in steps(path.parent).values()) or "none"
        raise UsageError(f"no checkpoint {path}", f"steps that exist there: {known}")
    if not path.is_dir():
        raise UsageError(f"no run folder {path}", "give a run folder, or one of its checkpoint/step-N folders")
    found = steps(path / "checkpoint") or steps(path)
    if not found:
        raise UsageError(f"no checkpoint in {path}", "give a run folder that has a checkpoint/step-N")
    return _newest_complete(found)


def _newest_complete(found: dict[int, Path]) -> Path:
    from trnt.checkpoint.dcp import complete

    for path in reversed(found.values()):
        reason = complete(path)
        if reason is None:
            return path
        console.warn(f"skipping the incomplete checkpoint {path}: {reason}")
    raise TrntError(f"no complete checkpoint among {', '.join(p.name for p in found.values())}", "train again")


def check_writable(folder: Path, needed_bytes: int) -> None:
    """Before the first step: the folder can be made and written, and the disk holds two checkpoints.

    Raises TrntError with the bytes needed and free.
    """
    import shutil

    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".trnt-write-test"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise TrntError(f"cannot write to {folder}: {error.strerror}", "choose another --out") from None
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise TrntError(
            f"checkpoints need {console.human_bytes(needed_bytes)}, {console.human_bytes(free)} are free at {folder}",
            "free some disk space or choose another --out",
        )
