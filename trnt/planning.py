"""A run's plan before anything is built: from what was checked (`ready.py`) to the tables of `parallel/plan.py`."""

from __future__ import annotations

from typing import Any

from trnt import device, host_memory
from trnt.errors import UsageError
from trnt.ready import Ready

KEPT = {"states": "optimizer_states", "gradients": "gradient_dtype", "recompute": "recompute"}


def plan_of(ready: Ready, recorded: dict[str, str] | None = None) -> Any:
    """The plan of a run: parameters, memory, arithmetic and time, and how its tensors are kept so that it fits.

    recorded: the choice of the run that is resumed; its optimizer states and gradients are kept as they were. Raises
    TrntError when the run does not fit, UsageError for states that the optimizer or the resumed run does not have.
    """
    from trnt.kernels.loss import ChunkedLoss
    from trnt.parallel import memory, plan

    settings = ready.settings
    optimizer = settings["optimizer"]
    fixed = {name: settings[key] for name, key in KEPT.items()}
    if optimizer != "adamw":
        if fixed["states"] not in (None, "fp32"):
            raise UsageError(
                f"--optimizer-states {fixed['states']} is for adamw, not {optimizer}", "leave --optimizer-states out"
            )
        fixed["states"] = "fp32"
    if recorded is not None:
        if fixed["states"] not in (None, recorded["states"]):
            raise UsageError(
                f"the run keeps its optimizer states in {recorded['states']}, not {fixed['states']}",
                f"use --optimizer-states {recorded['states']}, or another --out",
            )
        fixed["states"] = recorded["states"]
        # Which optimizer takes fp32 moments depends on the gradients, and so does the form they are saved in.
        if recorded["states"] == "fp32" and fixed["gradients"] not in (None, recorded["gradients"]):
            raise UsageError(
                f"the run keeps its gradients in {recorded['gradients']}, not {fixed['gradients']}",
                f"use --gradient-dtype {recorded['gradients']}, or another --out",
            )
        fixed["gradients"] = fixed["gradients"] or recorded["gradients"]
    alone = ready.machines.world_size == 1
    if not alone or ready.kind != "cpu" or settings["compile"] != "none" or not ready.native:  # autograd's gradients
        fixed["gradients"] = fixed["gradients"] or "fp32"
    degrees, machines = ready.degrees, ready.machines
    rows = settings["global_batch_size"] if settings["global_batch_size"] > 0 else settings["batch_size"] * degrees.data
    batch = plan.Batch(settings["seq_len"], settings["batch_size"], rows, settings["steps"])
    sharing = plan.Sharing(degrees.world_size // degrees.dp_replicate, settings["fsdp"] == "simple")
    here = machines.nproc if ready.kind == "cpu" else 1
    limit = ChunkedLoss.Config().max_logits_bytes
    logits = plan.logits_bytes(ready.entry, batch, limit)
    free = host_memory.free_bytes() // here  # the processes of a CPU share one memory
    choice, chosen = memory.choose(
        memory.ladder(fixed),
        lambda choice: plan.peak_bytes(ready.entry, batch, ready.precision, choice, optimizer, logits, sharing),
        free,
        settings["memory"] if ready.kind == "cpu" else "off",
    )
    return plan.make_plan(
        ready.entry,
        batch,
        precision=ready.precision,
        logits_limit_bytes=limit,
        free_bytes=free,
        peak_flops=device.cpu_peak_flops() if ready.kind == "cpu" else None,
        choice=choice,
        chosen=chosen,
        optimizer=optimizer,
        sharing=sharing,
        sent_bytes=sent_by_mesh(ready, batch, choice.recompute),
    )


def sent_by_mesh(ready: Ready, batch: Any, recompute: str) -> dict[str, int] | None:
    """Bytes that one process sends in a step; None for what `parallel/sent.py` has no formula for, and for pipelines,
    whose stages torchtitan cuts when it builds them."""
    from trnt.checkpoint.mapping import native_shapes
    from trnt.parallel import plan, sent

    settings, degrees = ready.settings, ready.degrees
    if not ready.native or degrees.pp > 1:
        return None
    setting = sent.Setting(
        degrees,
        batch.seq_len,
        batch.batch_size,
        batch.global_batch_size // (batch.batch_size * degrees.data),
        settings["fsdp"] == "simple",
        recompute,
        settings["sequence_parallel"],
        plan.COMPUTE_BYTES[ready.precision],
    )
    if not setting.known:
        return None
    found: dict[str, int] = {}
    for term in sent.sent(ready.entry.size, native_shapes(ready.entry), setting):
        found[term.mesh] = found.get(term.mesh, 0) + term.sent_bytes
    return found
