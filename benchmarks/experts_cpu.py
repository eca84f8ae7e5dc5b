"""Experts forward and backward on the CPU at Qwen3-30B-A3B's sizes: trnt beside transformers and torchtitan.

    python benchmarks/experts_cpu.py [--tokens 512] [--experts 64] [--repeats 3] [--json]

2,048 hidden, expert width 768, top-8, fp32 inputs and weights, the same for all. Every contender runs in a process of
its own, in turn; a figure is the best call of its median round. trnt writes the weights' gradients in place, as its
training does; transformers has its `grouped_mm` (`batched_mm` gathers weights for every row: 51 GB); torchtitan's
experts cast to bf16, and get the sorting and the combine that trnt's kernel has inside. Beside them stands the plain
fp32 product rate of the same minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

HIDDEN, WIDTH, TOP_K = 2048, 768, 8
CALLS = {"trnt": 5, "transformers grouped_mm": 5, "torchtitan bf16": 2}


def made(tokens: int, experts: int) -> Any:
    """The bench's own inputs, as leaves."""
    import torch

    from trnt import device

    device.ensure("cpu")
    from trnt.benching.experts import NAMES, inputs
    from trnt.benching.sizes import Sizes

    given = inputs(Sizes("", tokens, HIDDEN, 1, 1, 1, 1, experts, TOP_K, WIDTH), "cpu", torch.float32)
    for name in NAMES:
        getattr(given, name).requires_grad_()
    return given


def trnt(given: Any) -> Callable[[], Any]:
    from trnt import host_memory
    from trnt.kernels import grads
    from trnt.kernels.routed import RoutedSwiGLU

    host_memory.keep_freed()
    weights = (given.w1, given.w2, given.w3)
    for weight in weights:
        grads.own(weight)

    def call() -> Any:
        for weight in weights:
            grads.owner(weight).stale = True  # type: ignore[union-attr]
        return RoutedSwiGLU.apply(given.x, given.scores, given.ids, *weights)

    return call


def transformers(given: Any) -> Callable[[], Any]:
    import torch
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    E = len(given.w1)
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN, moe_intermediate_size=WIDTH, num_experts=E, num_experts_per_tok=TOP_K, hidden_act="silu"
    )
    config._experts_implementation = "grouped_mm"
    experts = Qwen3MoeExperts(config)
    experts.gate_up_proj = torch.nn.Parameter(torch.cat([given.w1.detach(), given.w3.detach()], 1))
    experts.down_proj = torch.nn.Parameter(given.w2.detach())
    given.weights = (experts.gate_up_proj, experts.down_proj)
    return lambda: experts(given.x, given.ids, given.scores)


def torchtitan(given: Any) -> Callable[[], Any]:
    import torch
    from torchtitan.models.common.moe import GroupedExperts

    from trnt.kernels.routed import by_expert

    E = len(given.w1)
    with torch.device("meta"):
        experts = GroupedExperts(GroupedExperts.Config(dim=HIDDEN, hidden_dim=WIDTH, num_experts=E))
    experts.w1_EFD, experts.w2_EDF, experts.w3_EFD = (
        torch.nn.Parameter(w.detach()) for w in (given.w1, given.w2, given.w3)
    )
    given.weights = tuple(experts.parameters())

    def call() -> Any:
        counts, order_R, token_R = by_expert(given.ids, E)
        y_RD = experts(given.x[token_R], torch.tensor(counts))
        return torch.zeros_like(given.x).index_add(0, token_R, given.scores.flatten()[order_R, None] * y_RD)

    return call


CONTENDERS: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "trnt": trnt,
    "transformers grouped_mm": transformers,
    "torchtitan bf16": torchtitan,
}


def contend(name: str, tokens: int, experts: int) -> dict[str, Any]:
    """Forward and backward, after one that is not counted; the output's sum of squares, to see that all agree."""
    import torch

    from trnt.benching.measure import product_flops

    given = made(tokens, experts)
    call = CONTENDERS[name](given)
    seconds: list[float] = []
    rates = [product_flops("cpu", torch.float32)]
    for _ in range(CALLS[name] + 1):
        given.x.grad = given.scores.grad = None
        for weight in getattr(given, "weights", ()):
            weight.grad = None
        start = time.perf_counter()
        out = call()
        out.backward(given.dout)
        seconds.append(time.perf_counter() - start)
        rates.append(product_flops("cpu", torch.float32))
    return {"seconds": min(seconds[1:]), "rate": max(rates), "square": out.detach().square().mean().item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--contender", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.contender:
        print(json.dumps(contend(given.contender, given.tokens, given.experts)))
        return
    sizes = ["--tokens", str(given.tokens), "--experts", str(given.experts)]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    for number in range(given.repeats):
        for name, found in rounds.items():
            words = [sys.executable, __file__, "--contender", name, *sizes]
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {number + 1}: {name} {found[-1]['seconds']:.2f} s", file=sys.stderr)
    flops = 18.0 * given.tokens * TOP_K * HIDDEN * WIDTH
    rows = [
        {
            "contender": name,
            "seconds": statistics.median(one["seconds"] for one in found),
            "rounds": [one["seconds"] for one in found],
            "of_rate": statistics.median(flops / one["seconds"] / one["rate"] for one in found),
            "rates": [one["rate"] for one in found],
            "square": found[0]["square"],
        }
        for name, found in rounds.items()
    ]
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    print(
        "| contender | s | rounds | of the fp32 product rate | GFLOP/s of products | trnt is faster by | mean square |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        each = ", ".join(f"{one:.2f}" for one in row["rounds"])
        rates = ", ".join(f"{one / 1e9:.0f}" for one in row["rates"])
        print(
            f"| {row['contender']} | {row['seconds']:.2f} | {each} | {row['of_rate']:.0%} | {rates} "
            f"| {row['seconds'] / rows[0]['seconds']:.2f} | {row['square']:.5f} |"
        )


if __name__ == "__main__":
    main()
