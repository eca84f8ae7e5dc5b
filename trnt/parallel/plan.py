"""What a run needs before anything of it is built: parameters, bytes, arithmetic and time, by arithmetic alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trnt import console
from trnt.models.registry import ModelEntry

# Bytes per parameter: stored weight, gradient, AdamW's two moments; torch keeps all three in the weight's dtype.
STORED_BYTES = {"fp32": 4, "mixed": 4, "bf16": 2}
COMPUTE_BYTES = {"fp32": 4, "mixed": 2, "bf16": 2}
# Share of the matmul peak that a CPU step reached on the small models here; the rest is memory traffic.
CPU_EFFICIENCY = 0.35


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
    memory_free_bytes: int
    checkpoint_bytes: int
    tokens_per_step: int
    flops_per_step: float
    seconds_per_step: float | None
    seconds_total: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def activation_values_per_token(size: Any) -> int:
    """Values that one layer keeps for its backward, per token: inputs of norms and matmuls, and what attention saves.

    Counted from the torchtitan Qwen3 block: two norms (input and output), q, k, v before and after their norm and
    RoPE, the attention output twice (kernel, projection input), then the SwiGLU's gate, up, activation and product, or
    for experts top_k times the routed input, gate, up and output (trnt's kernel recomputes the rest).
    """
    heads, kv = size.num_heads * size.head_dim, size.num_kv_heads * size.head_dim
    attention = 3 * (heads + kv) + kv + 2 * heads
    if size.num_experts:
        ffn = 2 * size.num_experts + size.top_k * (3 * size.hidden_size + 2 * size.moe_intermediate_size)
    else:
        ffn = 4 * size.intermediate_size
    return 4 * size.hidden_size + attention + ffn


def make_plan(
    entry: ModelEntry,
    *,
    seq_len: int,
    batch_size: int,
    global_batch_size: int,
    steps: int,
    precision: str,
    logits_limit_bytes: int,
    free_bytes: int,
    peak_flops: float | None,
) -> Plan:
    """Add up a run of one process. `peak_flops` is the device's matmul rate in FLOP/s, None when unknown."""
    size, family = entry.size, entry.family
    total, active = family.count_params(size)
    stored, compute = STORED_BYTES[precision], COMPUTE_BYTES[precision]
    tokens = batch_size * seq_len
    activations = tokens * activation_values_per_token(size) * size.num_layers * compute
    # logits, their softmax and the gradient of one chunk, in fp32
    logits = 3 * min(logits_limit_bytes, tokens * size.vocab_size * 4)
    rows = global_batch_size if global_batch_size > 0 else batch_size
    tokens_per_step = rows * seq_len
    flops = float(tokens_per_step * family.flops_per_token(size, seq_len))
    seconds = flops / (peak_flops * CPU_EFFICIENCY) if peak_flops else None
    return Plan(
        params_total=total,
        params_active=active,
        param_bytes=total * stored,
        gradient_bytes=total * stored,
        optimizer_bytes=2 * total * stored,
        activation_bytes=activations,
        logits_bytes=logits,
        memory_bytes=4 * total * stored + activations + logits,
        memory_free_bytes=free_bytes,
        checkpoint_bytes=3 * total * stored,
        tokens_per_step=tokens_per_step,
        flops_per_step=flops,
        seconds_per_step=seconds,
        seconds_total=seconds * steps if seconds is not None else None,
    )


def render(plan: Plan) -> str:
    """The plan as a table for people."""
    size, count = console.human_bytes, console.human_count
    rows = [
        ("parameters", f"{plan.params_total:,} ({count(plan.params_total)})"),
        ("active per token", f"{plan.params_active:,} ({count(plan.params_active)})"),
        ("weights", size(plan.param_bytes)),
        ("gradients", size(plan.gradient_bytes)),
        ("optimizer states", size(plan.optimizer_bytes)),
        ("activations", f"{size(plan.activation_bytes)} (estimate)"),
        ("logits of one chunk", size(plan.logits_bytes)),
        ("memory in all", f"{size(plan.memory_bytes)} of {size(plan.memory_free_bytes)} free"),
        ("one checkpoint", size(plan.checkpoint_bytes)),
        ("tokens per step", f"{plan.tokens_per_step:,}"),
        ("arithmetic per step", f"{plan.flops_per_step / 1e12:.3f} TFLOP"),
    ]
    if plan.seconds_per_step is not None and plan.seconds_total is not None:
        rows.append(("time per step", f"{plan.seconds_per_step:.2f} s (estimate)"))
        rows.append(("time in all", f"{console.human_time(plan.seconds_total)} (estimate)"))
    return console.table(("what", "how much"), rows)
