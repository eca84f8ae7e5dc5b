"""A training from resolved settings to the summary: the steps that `trnt train` takes, on one page."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnt import __version__, config, console, device, errors, runs
from trnt.config import Settings
from trnt.errors import UsageError
from trnt.models import registry
from trnt.models.registry import ModelEntry


@dataclass(frozen=True)
class Ready:
    """Everything that was checked before any model is built."""

    settings: Settings
    entry: ModelEntry
    tokens: Any
    kind: str
    precision: str


def prepare(settings: Settings) -> Ready:
    """Check the model, the batch, the data, the tokenizer and the device. Raises UsageError or TrntError."""
    from trnt.data.tokenizer import check_vocabulary
    from trnt.data.tokens import check_length
    from trnt.data.tokens import prepare as prepare_tokens

    entry = registry.get(settings["model"])
    entry = entry.cut(settings["layers"], settings["experts"])
    if settings["moe_balance"] != "none" and not entry.size.num_experts:
        raise UsageError(
            f"--moe-balance {settings['moe_balance']} needs experts, and {entry.name} is dense",
            "leave --moe-balance out, or choose a mixture of experts such as qwen3-tiny-moe",
        )
    if settings["seq_len"] > entry.size.max_seq_len:
        raise UsageError(
            f"--seq-len {settings['seq_len']} is longer than {entry.name} allows ({entry.size.max_seq_len})",
            f"use --seq-len {entry.size.max_seq_len} or less",
        )
    rows = settings["global_batch_size"]
    if rows > 0 and rows % settings["batch_size"]:
        raise UsageError(
            f"--global-batch-size {rows} is not a multiple of --batch-size {settings['batch_size']}",
            f"use --global-batch-size {-(-rows // settings['batch_size']) * settings['batch_size']}",
        )
    tokens = prepare_tokens(settings["data"], settings["tokenizer"], settings["text_field"])
    check_length(tokens, settings["seq_len"])
    check_vocabulary(tokens, entry.size.vocab_size, entry.name)
    kind = device.ensure(settings["device"])
    precision = settings["precision"] or ("fp32" if kind == "cpu" else "mixed")
    return Ready(settings, entry, tokens, kind, precision)


def identity(ready: Ready) -> dict[str, Any]:
    """What must be equal for a run to be resumed with the same result."""
    settings = ready.settings
    return {
        "model": ready.entry.name,
        "layers": ready.entry.size.num_layers,
        "experts": ready.entry.size.num_experts,
        "moe_balance": settings["moe_balance"],
        "data": ready.tokens.fingerprint,
        "seq_len": settings["seq_len"],
        "seed": settings["seed"],
        "shuffle": settings["shuffle"],
        "precision": ready.precision,
    }


def plan_of(ready: Ready) -> Any:
    """The plan of a run: parameters, memory, arithmetic and time."""
    from trnt.kernels.loss import ChunkedLoss
    from trnt.parallel.plan import make_plan

    settings = ready.settings
    return make_plan(
        ready.entry,
        seq_len=settings["seq_len"],
        batch_size=settings["batch_size"],
        global_batch_size=settings["global_batch_size"],
        steps=settings["steps"],
        precision=ready.precision,
        logits_limit_bytes=ChunkedLoss.Config().max_logits_bytes,
        free_bytes=device.memory_free_bytes(),
        peak_flops=device.cpu_peak_flops() if ready.kind == "cpu" else None,
    )


def print_config(settings: Settings, *, as_json: bool) -> None:
    """Every option with its origin; as JSON also torchtitan's whole tree."""
    if not as_json:
        console.result(config.render(settings))
        return
    from trnt.assemble import assemble

    ready = prepare(settings)
    start = runs.Start(Path(settings["out"] or "RUN"), resume=False)
    tree = assemble(
        settings, entry=ready.entry, tokens=ready.tokens, start=start, kind=ready.kind, precision=ready.precision
    )
    options = {o: {"value": settings[o], "origin": settings.origin(o)} for o in config.BY_NAME}
    console.result_json({"options": options, "config": tree.to_dict()})


def dry_run(settings: Settings, *, as_json: bool) -> None:
    """Check everything, print the plan, build nothing."""
    from trnt.parallel.plan import render

    ready = prepare(settings)
    plan = plan_of(ready)
    if as_json:
        console.result_json(
            {"model": ready.entry.name, "device": ready.kind, "precision": ready.precision, "plan": plan.to_dict()}
        )
    else:
        console.result(f"{describe(ready)}\n{render(plan)}")


def describe(ready: Ready) -> str:
    """One line: which model, on what, on which text."""
    size = ready.entry.size
    experts = f", {size.num_experts} experts, top-{size.top_k}" if size.num_experts else ""
    return (
        f"{ready.entry.name}: {size.num_layers} layers{experts}; {ready.kind} {ready.precision}; "
        f"{console.human_count(ready.tokens.num_tokens)} tokens of {ready.tokens.data}"
    )


def train(settings: Settings, *, as_json: bool) -> int:
    """Train to the end, or to a signal. Returns the exit code: 0, 130 or 143."""
    ready = prepare(settings)
    plan = plan_of(ready)
    from trnt import launch
    from trnt.assemble import assemble

    start = runs.choose_start(
        out=settings["out"],
        runs_dir=settings["runs_dir"],
        resume=settings["resume"],
        force=settings["force"],
        model=ready.entry.name,
        identity=identity(ready),
    )
    tree = assemble(
        settings, entry=ready.entry, tokens=ready.tokens, start=start, kind=ready.kind, precision=ready.precision
    )
    runs.check_writable(start.out, 2 * plan.checkpoint_bytes)
    if plan.memory_bytes > plan.memory_free_bytes:
        console.warn(
            f"this run needs about {console.human_bytes(plan.memory_bytes)} of memory, "
            f"{console.human_bytes(plan.memory_free_bytes)} are free; cut it with --layers or --experts"
        )
    write_run(ready, start, tree)
    console.note(describe(ready))
    console.note(f"run folder: {start.out}")
    trainer = launch.run(tree)
    summary = summarise(ready, start, plan, trainer)
    runs.write_json(start.out / "summary.json", {"schema_version": console.SCHEMA_VERSION, **summary})
    if as_json:
        console.result_json(summary)
    else:
        console.result(summary_text(summary))
    if trainer.stopped_by is not None and trainer.step < settings["steps"]:
        return errors.INTERRUPTED if trainer.stopped_by == signal.SIGINT else errors.TERMINATED
    return errors.OK


def write_run(ready: Ready, start: runs.Start, tree: Any) -> None:
    """Write what describes the run: run.json, recipe.toml, config.json and the tokenizer's files."""
    import shutil

    from trnt.data.tokenizer import tokenizer_files

    out = start.out
    run = {
        "schema_version": console.SCHEMA_VERSION,
        "trnt": __version__,
        "identity": identity(ready),
        "hf_config_of": ready.entry.name,
        "data": ready.tokens.data,
        "command": " ".join(["trnt", *sys.argv[1:]]),
        "started_from": str(start.source) if start.source else None,
    }
    runs.write_json(out / "run.json", run)
    runs.write_json(out / "config.json", tree.to_dict())
    (out / "recipe.toml").write_text(config.render(ready.settings), encoding="utf-8")
    (out / "tokenizer").mkdir(exist_ok=True)
    for path in tokenizer_files(ready.tokens.tokenizer_path):
        shutil.copyfile(path, out / "tokenizer" / path.name)


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
        "tokens_per_s": sorted(here)[len(here) // 2] if here else None,
        "memory_peak_bytes": device.peak_memory_bytes(),
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
    if summary["picture"]:
        lines.append(f"picture:    {summary['picture']}")
    if summary["step"] < summary["steps"]:
        lines.append(f"stopped early; the same command with --out {summary['run']} goes on")
    return "\n".join(lines)
