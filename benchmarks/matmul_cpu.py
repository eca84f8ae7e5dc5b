"""MKL (`torch.mm`) beside oneDNN for the products of a CPU step, as shares of a square product in the same second.

    python benchmarks/matmul_cpu.py [--json]

Shapes: an expert of Qwen3-30B-A3B (768 x 2,048) and a block of its head (512 x 2,048), for 16 to 1,024 tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch

SHAPES = {"expert up": (768, 2048), "expert down": (2048, 768), "head block": (512, 2048)}
TOKENS = [16, 64, 128, 512, 1024]
SQUARE = 2048
COPIES = 48  # different weights in turn, so that they come from memory and not from the cache


def rate(work: Callable[[], Any], flops: float, seconds: float = 0.5) -> float:
    """FLOP/s over about `seconds`."""
    work()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        work()
        count += 1
    return count * flops / (time.perf_counter() - start)


def measure(rows: int, columns: int, tokens: int) -> dict[str, float]:
    """Shares of the square product's rate, for x W^T and y W by both libraries."""
    weights = [torch.randn(rows, columns) for _ in range(COPIES)]
    x, y = torch.randn(tokens, columns), torch.randn(tokens, rows)
    square, out = torch.randn(SQUARE, SQUARE), torch.empty(SQUARE, SQUARE)
    one_dnn = torch.ops.mkldnn._linear_pointwise
    flops = 2.0 * rows * columns * tokens * COPIES
    ways: dict[str, Callable[[], Any]] = {
        "x W^T, MKL": lambda: [torch.mm(x, w.T) for w in weights],
        "x W^T, oneDNN": lambda: [one_dnn(x, w, None, "none", [], "") for w in weights],
        "y W, MKL": lambda: [torch.mm(y, w) for w in weights],
        "y W, oneDNN": lambda: [one_dnn(y, w.T, None, "none", [], "") for w in weights],
    }
    found = {}
    for name, work in ways.items():
        reference = rate(lambda: torch.mm(square, square, out=out), 2.0 * SQUARE**3)
        found[name] = rate(work, flops) / reference
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [
        {"weight": name, "tokens": tokens, **measure(*shape, tokens)}
        for name, shape in SHAPES.items()
        for tokens in TOKENS
    ]
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    names = [key for key in rows[0] if key not in ("weight", "tokens")]
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}; shares of a {SQUARE}^3 product")
    print("| weight | tokens | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 2))
    for row in rows:
        print(f"| {row['weight']} | {row['tokens']} | " + " | ".join(f"{row[name]:.2f}" for name in names) + " |")


if __name__ == "__main__":
    main()
