"""What each choice of the memory plan does to the loss and to the time, on a small model.

    python benchmarks/memory_choices.py [--steps 200] [--json]

The laptop recipe's model and text, the same seed, one run per choice in turn. Printed: the mean loss of the last 20
steps, the largest distance of the two smoothed curves (mean of 20 steps, from step 20 on) from fp32 AdamW's, and the
tokens per second beside fp32's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHOICES: dict[str, list[str]] = {
    "fp32 moments and gradients": [],
    "bf16 moments": ["--optimizer-states", "bf16"],
    "bf16 moments and gradients": ["--optimizer-states", "bf16", "--gradient-dtype", "bf16"],
    "8-bit moments, bf16 gradients": ["--optimizer-states", "8bit", "--gradient-dtype", "bf16"],
    "fp32, recompute": ["--recompute", "full"],
}
WINDOW = 20


def train(words: list[str], steps: int) -> list[dict[str, Any]]:
    """The rows of one run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "trnt", "train", "--recipe", "laptop", "--steps", str(steps), "--seed", "1"]
        done = subprocess.run([*command, "--out", str(out), *words], capture_output=True, text=True, env=os.environ)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def smoothed(rows: list[dict[str, Any]]) -> list[float]:
    """Mean losses of `WINDOW` steps, one per step from the first whole window on."""
    losses = [row["loss"] for row in rows]
    return [sum(losses[i : i + WINDOW]) / WINDOW for i in range(len(losses) - WINDOW + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    reference: list[float] = []
    base = 0.0
    for name, words in CHOICES.items():
        rows = train(words, given.steps)
        curve = smoothed(rows)
        speed = sorted(row["tokens_per_s"] for row in rows)[len(rows) // 2]
        reference, base = reference or curve, base or speed
        found[name] = {
            "last_loss": curve[-1],
            "distance": max(abs(a / b - 1) for a, b in zip(curve, reference, strict=True)),
            "tokens_per_s": speed,
            "relative_speed": speed / base,
        }
        print(f"{name}: done", file=sys.stderr)
    if given.json:
        print(json.dumps({"steps": given.steps, "choices": found}, indent=2))
        return
    print(f"{'choice':32} {'last loss':>9} {'distance':>9} {'tokens/s':>9} {'relative':>9}")
    for name, row in found.items():
        print(
            f"{name:32} {row['last_loss']:9.4f} {row['distance']:9.2%} {row['tokens_per_s']:9,.0f} "
            f"{row['relative_speed']:9.2f}"
        )


if __name__ == "__main__":
    main()
