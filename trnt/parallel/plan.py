"""What a run needs before anything of it is built: parameters, bytes, arithmetic and time, by arithmetic alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from trnt import console
from trnt.models.registry import ModelEntry
from trnt.parallel.memory import Choice

# Bytes per parameter as it is stored and as it is computed in.
STORED_BYTES = {"fp32": 4, "mixed": 4, "bf16": 2}
COMPUTE_BYTES = {"fp32": 4, "mixed": 2, "bf16": 2}
STATE_BYTES = {"fp32": 8.0, "bf16": 4.0, "8bit": 2.0 + 8 / 256}  # both moments of AdamW, `optim/states.py`
# Resident bytes of a process that has imported everything and trained, beside its tensors: 0.60 to 0.66 GiB here.
PROCESS_BYTES = 660 << 20
# Share of the matmul peak that a CPU step reaches: docs/performance.md.
CPU_EFFICIENCY = 0.65


@dataclass(frozen=True)
class Batch:
    """What one forward pass and one step see."""

    seq_len: int
    batch_size: int
    global_batch_size: int = -1
    steps: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of one forward pass of one process."""
        return self.seq_len * self.batch_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        rows = self.global_batch_size if self.global_batch_size > 0 else self.batch_size
        return rows * self.seq_len


@dataclass(frozen=True)
class Plan:
    """All in parameters, bytes, tokens, FLOPs or seconds, for one process; times are None without a known peak."""

    params_total: int
    params_active: int
    param_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    logits_bytes: int
    memory_bytes: int
    """The peak of the step, not the sum: gradients that are given back take the place of activations."""
    memory_free_bytes: int
    checkpoint_bytes: int
    tokens_per_step: int
    flops_per_step: float
    seconds_per_step: float | None
    seconds_total: float | None
    choice: Choice = field(default_factory=Choice)
    chosen: str | None = None
    """What was chosen to fit, in words; None when nothing was changed."""
    sent_bytes: dict[str, int] | None = None
    """What one process sends in a step, by mesh (`parallel/sent.py`); None where there is no formula."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def activation_values_per_token(size: Any) -> int:
    """Values that one layer keeps for its backward, per token.

    Counted with `torch.autograd.graph.saved_tensors_hooks` on the swapped torchtitan block (a test does it again). Each
    of two norms keeps its input, the normalised input and its output; attention keeps what the family says
    (`attention_values`); SwiGLU keeps gate, up, the activation and the product; experts keep gate and up for each of
    top_k choices (`kernels/routed.py`).
    """
    if size.num_experts:
        ffn = size.num_experts + size.top_k * (2 * size.moe_intermediate_size + 7)
    else:
        ffn = 4 * size.intermediate_size
    return 6 * size.hidden_size + size.attention_values + ffn + getattr(size, "extra_ffn_values", 0)


@dataclass(frozen=True)
class Sharing:
    """How the weights of a run are spread."""

    shards: int = 1
    """Processes that share the weights; one holds its share, and whole layers in passing."""
    kept: bool = False
    """Whether gathered layers stay for the backward (SimpleFSDP without recomputation)."""


def peak_bytes(
    entry: ModelEntry,
    batch: Batch,
    precision: str,
    choice: Choice,
    optimizer: str,
    logits: int,
    sharing: Sharing = Sharing(),
) -> int:
    """Resident bytes at the worst moment of a step: in the backward, or in the optimizer.

    Kept gradients lie there all the time. Released, they grow while activations shrink: the worst is the end of the
    forward with the head's gradient, or the end of the backward with all gradients. A layer's backward has about as
    much in passing as the layer kept.

    Activations are those of an unshared layer: an estimate from above under tensor, context and pipeline parallelism.
    """
    parts = components(entry, batch, precision, choice, optimizer, sharing)
    layer, activations = parts["layer"], parts["activations"]
    held = PROCESS_BYTES + parts["weights"] + parts["states"] + parts["gathered"]
    head = entry.size.vocab_size * entry.size.hidden_size * parts["gradient_size"]
    backward = parts["gradients"] + layer + (0 if choice.release else activations + logits)
    return held + max(activations + logits + head, backward, parts["gradients"] + parts["transient"])


def components(
    entry: ModelEntry, batch: Batch, precision: str, choice: Choice, optimizer: str, sharing: Sharing = Sharing()
) -> dict[str, int]:
    """Bytes of each kind of tensor."""
    size = entry.size
    total, _ = entry.family.count_params(size)
    stored, compute = STORED_BYTES[precision], COMPUTE_BYTES[precision]
    largest = max(size.vocab_size * size.hidden_size, size.num_experts * size.hidden_size * size.moe_intermediate_size)
    layer = batch.tokens * activation_values_per_token(size) * compute
    if choice.recompute == "full":
        activations = layer + size.num_layers * batch.tokens * size.hidden_size * compute
    elif choice.recompute == "selective":  # every other product is kept: at most half of the values
        activations = layer + layer * size.num_layers // 2
    else:
        activations = layer * size.num_layers
    gradient_size = 2 if choice.gradients == "bf16" else stored
    ends = size.vocab_size * size.hidden_size * (1 if size.tied else 2)
    looked_up = 0 if size.tied or choice.gradients == "fp32" else size.vocab_size * size.hidden_size
    adamw = STATE_BYTES[choice.states] * stored / 4 if choice.states == "fp32" else STATE_BYTES[choice.states]
    states = {
        "adamw": adamw * total,
        "adafactor": 0.0,
        "muon": stored * (total - ends) + 2 * stored * ends,  # one momentum for matrices, AdamW for the ends
        "sgd": stored * total,
    }[optimizer]
    # torch's Adafactor makes the whole update of a weight, and its squares
    transient = 3 * largest * stored if optimizer == "adafactor" else 0
    unit = max(ends, (total - ends) // size.num_layers)  # what FSDP gathers at once, weights and gradients
    gathered = total + unit if sharing.kept and choice.recompute != "full" else 2 * unit
    return {
        "weights": total * stored // sharing.shards,
        # of a bf16 embedding only the rows that were looked up
        "gradients": (total - looked_up) * gradient_size // sharing.shards,
        "gradient_size": gradient_size,
        "gathered": gathered * compute if sharing.shards > 1 else 0,
        "states": int(states) // sharing.shards,
        "layer": layer,
        "activations": activations,
        "transient": transient,
    }


def make_plan(
    entry: ModelEntry,
    batch: Batch,
    *,
    precision: str,
    logits_limit_bytes: int,
    free_bytes: int,
    peak_flops: float | None,
    choice: Choice | None = None,
    chosen: str | None = None,
    optimizer: str = "adamw",
    sharing: Sharing = Sharing(),
    sent_bytes: dict[str, int] | None = None,
) -> Plan:
    """Add up a run, as one process sees it. `peak_flops` is the device's matmul rate in FLOP/s, None when unknown."""
    choice = choice or Choice()
    size, family = entry.size, entry.family
    total, active = family.count_params(size)
    parts = components(entry, batch, precision, choice, optimizer, sharing)
    logits = logits_bytes(entry, batch, logits_limit_bytes)
    flops = float(batch.tokens_per_step * family.flops_per_token(size, batch.seq_len))
    seconds = flops / (peak_flops * CPU_EFFICIENCY) if peak_flops else None
    return Plan(
        params_total=total,
        params_active=active,
        param_bytes=parts["weights"],
        gradient_bytes=parts["gradients"],
        optimizer_bytes=parts["states"],
        activation_bytes=parts["activations"],
        logits_bytes=logits,
        memory_bytes=peak_bytes(entry, batch, precision, choice, optimizer, logits, sharing),
        memory_free_bytes=free_bytes,
        checkpoint_bytes=(parts["weights"] + parts["states"]) * sharing.shards,
        tokens_per_step=batch.tokens_per_step,
        flops_per_step=flops,
        seconds_per_step=seconds,
        seconds_total=seconds * batch.steps if seconds is not None else None,
        choice=choice,
        chosen=chosen,
        sent_bytes=sent_bytes,
    )


def logits_bytes(entry: ModelEntry, batch: Batch, limit: int) -> int:
    """The buffer of one chunk's fp32 logits."""
    return min(limit, batch.tokens * entry.size.vocab_size * 4)


def render(plan: Plan) -> str:
    """The plan as a table for people."""
    size, count = console.human_bytes, console.human_count
    rows = [
        ("parameters", f"{plan.params_total:,} ({count(plan.params_total)})"),
        ("active per token", f"{plan.params_active:,} ({count(plan.params_active)})"),
        ("weights", size(plan.param_bytes)),
        ("gradients", f"{size(plan.gradient_bytes)} ({plan.choice.gradients})"),
        ("optimizer states", f"{size(plan.optimizer_bytes)} ({plan.choice.states})"),
        ("activations", f"{size(plan.activation_bytes)} (recompute: {plan.choice.recompute})"),
        ("logits of one chunk", size(plan.logits_bytes)),
        ("peak memory", f"{size(plan.memory_bytes)} of {size(plan.memory_free_bytes)} free"),
        ("one checkpoint", size(plan.checkpoint_bytes)),
        ("tokens per step", f"{plan.tokens_per_step:,}"),
        ("arithmetic per step", f"{plan.flops_per_step / 1e12:.3f} TFLOP"),
    ]
    if plan.sent_bytes:
        parts = ", ".join(f"{mesh} {size(count)}" for mesh, count in plan.sent_bytes.items())
        rows.append(("sent per step", f"{size(sum(plan.sent_bytes.values()))} by each process ({parts})"))
    if plan.seconds_per_step is not None and plan.seconds_total is not None:
        rows.append(("time per step", f"{plan.seconds_per_step:.2f} s (estimate)"))
        rows.append(("time in all", f"{console.human_time(plan.seconds_total)} (estimate)"))
    return console.table(("what", "how much"), rows)
