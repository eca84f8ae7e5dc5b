"""From what a user named to the step folder, the model and the destination; then the export itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trnt import console, runs
from trnt.errors import TrntError, UsageError
from trnt.models import registry


def locate(run: str | None, runs_dir: str) -> tuple[Path, Path]:
    """The run folder and the step folder meant by `run` (a run, a step folder, or None for the newest run)."""
    folder = runs.newest_run(runs_dir) if run is None else Path(run)
    step = runs.find_step(folder)
    owner = step.parent.parent
    if run is None:
        console.note(f"newest run: {owner}")
    return owner, step


def export_run(run: str | None, destination: str | None, *, runs_dir: str, dtype: str, force: bool) -> dict[str, Any]:
    """Export one step of a run. Returns the report that `trnt export --json` prints.

    Raises TrntError when the run does not say which model it holds, and what the export itself raises.
    """
    owner, step = locate(run, runs_dir)
    described = runs.read_run(owner)
    if described is None:
        raise TrntError(f"{owner} has no run.json, so its model is unknown", "name a run folder made by trnt train")
    identity = described["identity"]
    entry = registry.get(identity["model"]).cut(identity["layers"], identity["experts"] or None)
    target = Path(destination) if destination else owner / "hf"
    if (
        target.resolve() == owner.resolve()
        or target.resolve() in step.resolve().parents
        or target.resolve() == step.resolve()
    ):
        raise UsageError(f"the destination {target} holds the run itself", "name a folder of its own")
    number = int(step.name.removeprefix("step-"))
    rows = [row for row in runs.read_rows(owner / "metrics.jsonl") if row["step"] <= number]
    from trnt.checkpoint.export import export_hf

    return export_hf(
        step,
        target,
        entry=entry,
        tokenizer_folder=owner / "tokenizer",
        dtype=dtype,
        force=force,
        moe_balance=identity["moe_balance"],
        info={
            "steps": number,
            "tokens": rows[-1]["tokens"] if rows else None,
            "loss": rows[-1]["loss"] if rows else None,
            "data": described.get("data"),
            "command": described.get("command"),
        },
    )
