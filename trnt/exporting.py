"""From what a user named to the step folder, the model and the destination; then the export itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trnt import console, runs
from trnt.checkpoint.layout import SHARD_BYTES
from trnt.errors import TrntError, UsageError


def locate(run: str | None, runs_dir: str) -> tuple[Path, Path]:
    """The run folder and the step folder meant by `run` (a run, a step folder, or None for the newest run)."""
    folder = runs.newest_run(runs_dir) if run is None else Path(run)
    step = runs.find_step(folder)
    owner = step.parent.parent
    if run is None:
        console.note(f"newest run: {owner}")
    return owner, step


def export_run(
    run: str | None,
    destination: str | None,
    *,
    runs_dir: str,
    dtype: str | None,
    force: bool,
    to: str = "hf",
    shard_bytes: int = SHARD_BYTES,
    check: bool = True,
) -> dict[str, Any]:
    """Export one step of a run. Returns the report that `trnt export --json` prints.

    Raises TrntError when the run does not say which model it holds, and what the export itself raises.
    """
    owner, step = locate(run, runs_dir)
    described = runs.read_run(owner)
    if described is None:
        raise TrntError(f"{owner} has no run.json, so its model is unknown", "name a run folder made by trnt train")
    target = Path(destination) if destination else owner / to
    if (
        target.resolve() == owner.resolve()
        or target.resolve() in step.resolve().parents
        or target.resolve() == step.resolve()
    ):
        raise UsageError(f"the destination {target} holds the run itself", "name a folder of its own")
    if described["identity"].get("backend") == "transformers":
        if to != "hf":
            raise UsageError(f"--to {to}: a run with --backend transformers is exported to hf", "use --to hf")
        from trnt.checkpoint.export_transformers import Options

        return by_transformers(owner, step, target, described, Options(dtype, force, shard_bytes, check))
    return export_step(
        step,
        target,
        dtype=dtype,
        force=force,
        to=to,
        shard_bytes=shard_bytes,
        check=check,
        info=told(owner, step, described),
    )


def told(owner: Path, step: Path, described: dict[str, Any]) -> dict[str, Any]:
    """What a model card says of a run's step."""
    number = int(step.name.removeprefix("step-"))
    rows = [row for row in runs.read_rows(owner / "metrics.jsonl") if row["step"] <= number]
    return {
        "base": described.get("init_from"),
        "steps": number,
        "tokens": rows[-1]["tokens"] if rows else None,
        "loss": rows[-1]["loss"] if rows else None,
        "data": described.get("data"),
        "command": described.get("command"),
    }


def by_transformers(owner: Path, step: Path, target: Path, described: dict[str, Any], options: Any) -> dict[str, Any]:
    """The export of a run with --backend transformers; options: `checkpoint.export_transformers.Options`."""
    from trnt.checkpoint import export, export_transformers
    from trnt.models import transformers as family
    from trnt.models.registry import ModelEntry
    from trnt.opening import ORIGIN

    def add(folder: Path, config: dict[str, Any], written: str) -> None:
        entry = ModelEntry(described["identity"]["model"], family, family.from_config(config))
        export.write_generation_config(folder)
        card = export.model_card(entry, written, told(owner, step, described))
        (folder / export.CARD).write_text(card, encoding="utf-8")

    return export_transformers.export(step, owner / ORIGIN, owner / "tokenizer", target, options, add)


def export_step(
    step: Path,
    target: Path,
    *,
    dtype: str | None = None,
    force: bool = False,
    to: str = "hf",
    shard_bytes: int = SHARD_BYTES,
    check: bool = True,
    info: dict[str, Any] | None = None,
    opened: Any = None,
) -> dict[str, Any]:
    """Write `target` from a step folder of a run; `opened` where the model is known otherwise. Returns the report.

    Everything is checked before anything is written. Raises TrntError when the checkpoint is not the run's model, when
    a weight is NaN or infinite, or when the finished folder would not load.
    """
    from trnt import converting
    from trnt.checkpoint import export, inspect
    from trnt.opening import open_checkpoint

    opened = opened or open_checkpoint(str(step))
    source, entry = opened.source, opened.entry
    wanted = converting.Wanted(to=to, dtype=dtype, force=force, shard_bytes=shard_bytes, model_only=True)
    bias = inspect.dropped_bias(source, entry) if to == "hf" else {}
    dropped: dict[str, Any] | None = None
    if bias:
        moved = export.logits_moved(source, entry, list(inspect.model_tensors(source)))
        dropped = {"names": sorted(bias), "largest": max(bias.values()), "logits_moved": moved}
    planned = converting.plan(opened, str(target), wanted)
    written = converting.dtypes_of(planned)[0]

    def add(folder: Path) -> None:
        if to == "hf":
            export.write_generation_config(folder)
            (folder / export.CARD).write_text(export.model_card(entry, written, info or {}), encoding="utf-8")

    def loads(folder: Path) -> None:
        if to == "hf" and check:
            export.check_loads(folder, {item.target.name for item in planned.layout.items})

    report = converting.run(planned, wanted, title="exporting", refuse_not_finite=True, assets=add, check=loads)
    if dropped:
        console.warn(
            f"the expert balance bias (up to {dropped['largest']:.4g}) has no place in a Hugging Face folder and is "
            f"dropped: logits move by up to {dropped['logits_moved']:.4g}; --moe-balance aux or none trains without it"
        )
    return {
        "folder": str(target),
        "step_folder": str(step),
        "architecture": planned.config["architectures"][0],
        "dtype": written,
        "dropped": dropped,
        "checked": check and to == "hf",
        **{key: report[key] for key in ("to", "tensors", "bytes", "files", "seconds", "memory_peak_bytes")},
    }
