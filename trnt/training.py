"""A training from resolved settings to the summary: the steps that `trnt train` takes, on one page."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from trnt import __version__, compiling, config, console, errors, host_memory, runs
from trnt.config import Settings
from trnt.planning import plan_of
from trnt.ready import Ready, identity, prepare
from trnt.starting import Origin


def print_config(settings: Settings, *, as_json: bool) -> None:
    """Every option with its origin; as JSON also torchtitan's whole tree."""
    if not as_json:
        console.result(config.render(settings))
        return
    from trnt.assemble import assemble

    ready = prepare(settings)
    start = runs.Start(Path(settings["out"] or "RUN"), resume=False)
    tree = assemble(ready, start, plan_of(ready).choice)
    options = {o: {"value": settings[o], "origin": settings.origin(o)} for o in config.BY_NAME}
    console.result_json({"options": options, "config": tree.to_dict()})


def dry_run(settings: Settings, *, as_json: bool) -> None:
    """Check everything, print the plan, build nothing."""
    from trnt.parallel.plan import render

    ready = prepare(settings)
    plan = plan_of(ready)
    if as_json:
        console.result_json(
            {
                "model": ready.entry.name,
                "device": ready.kind,
                "precision": ready.precision,
                "backend": settings["backend"],
                "kernels": ready.kernels.name,
                "plan": plan.to_dict(),
            }
        )
    else:
        console.result(
            "\n".join(
                filter(None, (describe(ready), ready.beginning.note, plan.chosen, ready.kernels.why, render(plan)))
            )
        )


def describe(ready: Ready) -> str:
    """One line: which model, on what, on which text."""
    size = ready.entry.size
    experts = f", {size.num_experts} experts, top-{size.top_k}" if size.num_experts else ""
    whose = "" if ready.native else f", by transformers ({size.config['model_type']})"
    many = ready.machines.world_size
    shared = f" on {many} processes ({ready.degrees.describe()})" if many > 1 else ""
    return (
        f"{ready.entry.name}: {size.num_layers} layers{experts}{whose}; {ready.kind} {ready.precision}{shared}; "
        f"{console.human_count(ready.tokens.num_tokens)} tokens of {ready.tokens.data}"
    )


def train(settings: Settings, *, as_json: bool) -> int:
    """Train to the end, or to a signal. Returns the exit code: 0, 130 or 143."""
    from trnt import elastic, launch
    from trnt.parallel.memory import Choice

    if not elastic.joined_a_launcher() and launch.rank():
        console.silence()
    kept = compiling.keep() if settings["compile"] == "inductor" else None
    ready = prepare(settings)
    if ready.machines.world_size > 1 and not launch.launched():
        return many(ready)
    from trnt.assemble import assemble

    comm = assemble(ready, runs.Start(Path("RUN"), resume=False), Choice()).comm if launch.world_size() > 1 else None
    with launch.joined(comm):
        start = launch.shared(lambda: choose_start(ready))
        plan = launch.shared(lambda: plan_of(ready, recorded_choice(start)))
        tree = assemble(ready, start, plan.choice)
        weights = ready.beginning.weights
        if weights is not None and start.fresh:
            if ready.native:
                tree.init_from = str(weights.path)
            else:
                tree.model_spec.model.weights = str(weights.path)
        launch.shared(lambda: write_run(ready, start, tree, plan))
        console.note(describe(ready))
        for line in filter(None, (ready.beginning.note, plan.chosen, ready.kernels.why)):
            console.note(line)
        console.note(f"run folder: {start.out}")
        if kept is not None:
            console.note(f"compiling in the first step; compiled code is kept in {kept}")
        trainer = launch.run(tree)
    if not launch.rank():
        say_how_it_went(ready, start, plan, trainer, as_json=as_json)
    if trainer.stopped_by is not None and trainer.step < settings["steps"]:
        return errors.INTERRUPTED if trainer.stopped_by == signal.SIGINT else errors.TERMINATED
    return errors.OK


def many(ready: Ready) -> int:
    """The same command as several processes. What a user can have got wrong is known before any of them starts."""
    from trnt import elastic

    machines = ready.machines
    plan_of(ready)
    words = sys.argv[1:]
    out = ready.settings["out"]
    if machines.node_rank == 0:
        out = str(choose_start(ready).out)
        words += ["--out", out]
    return elastic.start(words, machines, Path(out) / runs.LOGS)


def choose_start(ready: Ready) -> runs.Start:
    """Where a training writes and what it goes on with."""
    settings = ready.settings
    return runs.choose_start(
        out=settings["out"],
        runs_dir=settings["runs_dir"],
        resume=settings["resume"],
        force=settings["force"],
        model=ready.entry.name,
        identity=identity(ready),
    )


def say_how_it_went(ready: Ready, start: runs.Start, plan: Any, trainer: Any, *, as_json: bool) -> None:
    """summary.json, and the summary on stdout."""
    summary = summarise(ready, start, plan, trainer)
    if hint := uneven(ready.settings["moe_balance"], trainer.metrics_processor.rows):
        console.note(hint)
    runs.write_json(start.out / "summary.json", {"schema_version": console.SCHEMA_VERSION, **summary})
    if as_json:
        console.result_json(summary)
    else:
        console.result(summary_text(summary))


UNEVEN = 4.0  # times its share that the busiest expert may get before it is worth a word


def uneven(moe_balance: str, rows: list[dict[str, Any]]) -> str | None:
    """What to say when the router of an unbalanced run sends most tokens to few experts; None when it does not."""
    last = [row["moe/busiest_expert"] for row in rows[-10:] if "moe/busiest_expert" in row]
    if moe_balance != "none" or not last or min(last) < UNEVEN:
        return None
    return (
        f"the busiest expert of a layer gets {last[-1]:.1f} times its share: --moe-balance aux (or bias) in a new run "
        "keeps experts evenly used"
    )


def recorded_choice(start: runs.Start) -> dict[str, str] | None:
    """How the run that is resumed or started from keeps its tensors; None for a fresh start."""
    folder = start.out if start.resume else start.source.parent.parent if start.source is not None else None
    run = runs.read_run(folder) if folder is not None else None
    return dict(run["memory"]) if run and "memory" in run else None


def write_run(ready: Ready, start: runs.Start, tree: Any, plan: Any) -> None:
    """Write what describes the run: run.json, recipe.toml, config.json and the tokenizer's files.

    Raises TrntError when the folder cannot be written, or does not hold two checkpoints.
    """
    import shutil

    from trnt.data.tokenizer import tokenizer_files

    out = start.out
    runs.check_writable(out, 2 * plan.checkpoint_bytes)
    run = {
        "schema_version": console.SCHEMA_VERSION,
        "trnt": __version__,
        "identity": identity(ready),
        "memory": plan.choice.to_dict(),
        "hf_config_of": ready.entry.name,
        "data": ready.tokens.data,
        "command": " ".join(["trnt", *sys.argv[1:]]),
        "started_from": str(start.source) if start.source else None,
        "init_from": ready.settings["init_from"],
    }
    runs.write_json(out / "run.json", run)
    runs.write_json(out / "config.json", tree.to_dict())
    (out / "recipe.toml").write_text(config.render(ready.settings), encoding="utf-8")
    if ready.beginning.origin is not None:
        write_origin(ready.beginning.origin, out)
    (out / "tokenizer").mkdir(exist_ok=True)
    for path in tokenizer_files(ready.tokens.tokenizer_path):
        shutil.copyfile(path, out / "tokenizer" / path.name)


def write_origin(origin: Origin, out: Path) -> None:
    """What belongs to the model that a run began with, for its export: config, generation config, tokenizer."""
    from trnt.checkpoint import assets
    from trnt.opening import ORIGIN

    assets.copy_assets(origin.assets, out / ORIGIN)
    assets.write_config(origin.config, origin.config_file, out / ORIGIN)


def summarise(ready: Ready, start: runs.Start, plan: Any, trainer: Any) -> dict[str, Any]:
    """The run in figures: losses, tokens, seconds, where the files lie."""
    report = trainer.metrics_processor
    rows = report.rows
    picture = report.picture()
    here = [row["tokens_per_s"] for row in rows[-50:]]
    saved = runs.steps(start.out / "checkpoint")
    return {
        "model": ready.entry.name,
        "device": ready.kind,
        "precision": ready.precision,
        "backend": ready.settings["backend"],
        "kernels": ready.kernels.name,
        "params_total": plan.params_total,
        "params_active": plan.params_active,
        "step": trainer.step,
        "trained_steps": report.trained,
        "steps": ready.settings["steps"],
        "stopped_by": signal.Signals(trainer.stopped_by).name if trainer.stopped_by else None,
        "tokens": rows[-1]["tokens"] if rows else 0,
        "first_loss": rows[0]["loss"] if rows else None,
        "last_loss": rows[-1]["loss"] if rows else None,
        "seconds": report.seconds(),
        "compile_seconds": compiling.seconds() if ready.settings["compile"] != "none" else None,
        "tokens_per_s": sorted(here)[len(here) // 2] if here else None,
        "memory_peak_bytes": host_memory.peak_bytes(),
        "memory_planned_bytes": plan.memory_bytes,
        "memory_choice": plan.choice.to_dict(),
        "run": str(start.out),
        "checkpoint": str(saved[max(saved)]) if saved else None,
        "metrics": str(report.path),
        "picture": str(picture) if picture else None,
    }


def summary_text(summary: dict[str, Any]) -> str:
    """The summary for people."""
    if not summary["trained_steps"]:
        return f"nothing left to train: {summary['run']} is at step {summary['step']} of {summary['steps']}"
    lines = [
        f"step {summary['step']}/{summary['steps']}: loss {summary['first_loss']:.4f} -> {summary['last_loss']:.4f}, "
        f"{summary['tokens']:,} tokens in {console.human_time(summary['seconds'])} "
        f"({summary['tokens_per_s']:,.0f} tokens/s, peak {console.human_bytes(summary['memory_peak_bytes'])})",
        f"checkpoint: {summary['checkpoint']}",
        f"metrics:    {summary['metrics']}",
    ]
    if summary["compile_seconds"] is not None:
        lines.append(f"compiling:  {summary['compile_seconds']:.1f} s of it")
    if summary["picture"]:
        lines.append(f"picture:    {summary['picture']}")
    if summary["step"] < summary["steps"]:
        lines.append(f"stopped early; the same command with --out {summary['run']} goes on")
    return "\n".join(lines)
