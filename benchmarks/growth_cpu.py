"""How a step's time and memory grow with tokens, experts and layers: a table and a plot.

    python benchmarks/growth_cpu.py [--plot docs/growth.png] [--json]

Each row is a run of its own, three steps of which the last counts, of Qwen3-30B-A3B's layers cut down: hidden
2,048, expert width 768, top-8, and a vocabulary of 151,936. Beside every time stands the step's arithmetic per second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BASE = {"tokens": 512, "experts": 16, "layers": 2}
SERIES: dict[str, list[int]] = {
    "tokens": [128, 256, 512, 1024, 2048, 4096],
    "experts": [8, 16, 32, 64, 128],
    "layers": [1, 2, 4, 8],
}
SEQ_LEN = 128


def one(tokens: int, experts: int, layers: int) -> dict[str, Any]:
    """Train three steps in this process, saving nothing; seconds, bytes and FLOP/s of the third."""
    from trnt import config, training
    from trnt.checkpoint.manager import Checkpointer

    Checkpointer.save = lambda self, step, last_step=False: False  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        given = {"model": "qwen3-30b-a3b", "layers": layers, "experts": experts, "steps": 3, "out": f"{folder}/run"}
        given |= {"seq_len": SEQ_LEN, "batch_size": tokens // SEQ_LEN, "device": "cpu"}
        given |= {"optimizer_states": "bf16", "gradient_dtype": "bf16"}
        training.train(config.resolve(given, environment={}), as_json=False)
        row = json.loads((Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()[-1])
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    return {
        "tokens": tokens,
        "experts": experts,
        "layers": layers,
        "params": summary["params_total"],
        "seconds": row["seconds"],
        "flops_per_s": row["flops_per_s"],
        "peak_bytes": summary["memory_peak_bytes"],
        "planned_bytes": summary["memory_planned_bytes"],
    }


def measure(**shape: int) -> dict[str, Any]:
    """`one` in a process of its own."""
    words = [sys.executable, __file__, "--one", json.dumps(shape)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def plot(found: dict[str, list[dict[str, Any]]], path: str) -> None:
    """Seconds and GiB against each of the three, on logarithmic axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, rows) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        values = [row[name] for row in rows]
        axes.loglog(values, [row["seconds"] for row in rows], "o-", color="#08519c", label="seconds per step")
        axes.loglog(values, [row["peak_bytes"] / 2**30 for row in rows], "s-", color="#cb181d", label="peak GiB")
        axes.set_xlabel(name)
        axes.set_xticks(values, [str(value) for value in values])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(**json.loads(given.one))))
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for name, values in SERIES.items():
        found[name] = []
        for value in values:
            found[name].append(measure(**{**BASE, name: value}))
            print(f"{name} {value}: {found[name][-1]['seconds']:.1f} s", file=sys.stderr)
    if given.plot:
        plot(found, given.plot)
    if given.json:
        print(json.dumps(found, indent=2))
        return
    print("| grows | tokens | experts | layers | parameters | s per step | GFLOP/s | peak GiB | planned GiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, rows in found.items():
        for row in rows:
            print(
                f"| {name} | {row['tokens']:,} | {row['experts']} | {row['layers']} | {row['params'] / 1e6:,.0f} M | "
                f"{row['seconds']:.1f} | {row['flops_per_s'] / 1e9:.0f} | {row['peak_bytes'] / 2**30:.1f} | "
                f"{row['planned_bytes'] / 2**30:.1f} |"
            )


if __name__ == "__main__":
    main()
