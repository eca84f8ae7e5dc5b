"""How a step's time, memory and traffic change with processes; and what the formula says for 64 and 1,024 cores.

    python benchmarks/scale.py             # 1, 2, 4 and 8 processes on this machine, what is sent counted and foreseen
    python benchmarks/scale.py --project   # Trainium2 by arithmetic; nothing runs

All processes share this machine's cores: the time of more processes shows what they cost each other, not a speed-up.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from trnt.checkpoint.mapping import native_shapes
from trnt.models import registry
from trnt.parallel import sent
from trnt.parallel.degrees import Degrees

MODEL, SEQ_LEN, STEPS = "qwen3-tiny-moe", 64, 6
# name: degrees of n processes, or None where this model cannot be cut so
LAYOUTS: dict[str, Any] = {
    "FSDP2": lambda n: Degrees(dp_shard=n),
    "FSDP2 with EP": lambda n: Degrees(dp_shard=n, ep=n),
    "replicated": lambda n: Degrees(dp_replicate=n),
    "TP": lambda n: Degrees(tp=n) if n <= 4 else None,
}
# trn2.48xlarge at LNC 2, a core's share: shared/reference/torchneuron.md, from the Neuron SDK's pages
CORES, PEAK_FLOPS, LINK_BYTES, MACHINE_BYTES = 64, 166.75e12, 1024e9 / 4, 3200e9 / 8
LINE = "\n" + "|---" * 6 + "|"
BUSY = 0.4  # of the peak, while a core computes: what a well-tuned step reaches elsewhere; an assumption
PLANNED = [
    ("qwen3-30b-a3b", 4096, Degrees(dp_shard=64, ep=16)),
    ("qwen3-30b-a3b", 4096, Degrees(dp_shard=64, ep=64)),
    ("qwen3-30b-a3b", 4096, Degrees(dp_shard=16, tp=4, ep=64)),
    ("qwen3-30b-a3b", 4096, Degrees(dp_shard=1024, ep=16)),
    ("qwen3-30b-a3b", 4096, Degrees(dp_replicate=16, dp_shard=64, ep=16)),
    ("qwen3-30b-a3b", 4096, Degrees(dp_shard=1024, ep=128)),
    ("qwen3-32b", 4096, Degrees(dp_shard=64)),
    ("qwen3-32b", 4096, Degrees(dp_shard=16, tp=4)),
    ("qwen3-32b", 4096, Degrees(dp_shard=1024)),
    ("qwen3-32b", 4096, Degrees(dp_shard=256, tp=4)),
    ("qwen3-32b", 4096, Degrees(dp_replicate=16, dp_shard=16, tp=4)),
]


def worker(place: Path, words: list[str]) -> None:
    """One process of a measured run: what it sent in the second step, its peak, beside the run's own log."""
    from trnt import device

    device.ensure("cpu")
    from trnt.checkpoint.manager import Checkpointer
    from trnt.cli import main as trnt
    from trnt.parallel.traffic import NUMBER, Counting
    from trnt.trainer import Trainer

    step = Trainer.train_step
    found: dict[str, int] = {}

    def counted(self: Any, batches: Any) -> None:
        if self.step != 2:
            return step(self, batches)
        with Counting() as counting:
            step(self, batches)
        for (_, kind), count in counting.found.items():
            if kind != NUMBER:
                found[kind] = found.get(kind, 0) + count.sent_bytes
        return None

    Trainer.train_step = counted  # type: ignore[method-assign]
    Checkpointer.save = lambda self, step, last_step=False: False  # type: ignore[method-assign]
    sys.argv = ["trnt", *words]
    try:
        trnt()
    except SystemExit as done:
        if done.code:
            raise
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (place / f"rank-{os.environ['RANK']}.json").write_text(json.dumps({"sent": found, "peak_bytes": peak}))


def setting(degrees: Degrees, seq_len: int, **options: Any) -> sent.Setting:
    """One row a process with rows of its own; tensor parallelism has as many rows as processes, for equal work."""
    return sent.Setting(degrees, seq_len, degrees.tp, **options)


def measure(name: str, processes: int) -> dict[str, Any] | None:
    """Six steps of a layout: seconds of the last four, peak of one process, bytes counted and foreseen."""
    degrees = LAYOUTS[name](processes)
    if degrees is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "--model", MODEL, "--steps", str(STEPS), "--seq-len", str(SEQ_LEN), "--out", f"{folder}/run"]
        words += ["--batch-size", str(degrees.tp)]
        for flag in ("dp_replicate", "dp_shard", "tp", "ep"):
            words += [f"--{flag.replace('_', '-')}", str(getattr(degrees, flag))]
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        done = subprocess.run(
            [*launch, __file__, "--worker", folder, *words],
            capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        ranks = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank-*.json"))]
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    entry = registry.get(MODEL)
    counted = sum(sum(rank["sent"].values()) for rank in ranks) / processes
    terms = sent.sent(entry.size, native_shapes(entry), setting(degrees, SEQ_LEN))
    return {
        "layout": name,
        "processes": processes,
        "seconds": median(row["seconds"] for row in rows[2:]),
        "peak_bytes": max(rank["peak_bytes"] for rank in ranks),
        "sent_bytes": counted,
        "foreseen_bytes": sum(term.sent_bytes for term in terms),
    }


def seconds(term: sent.Term, stride: int) -> float:
    """Of a core, for a group whose members are `stride` cores apart, when nothing else is sent and latency is nothing.

    Inside a machine each core sends at its share of its chip's links. A group that leaves the machine is a ring, or for
    an all-to-all direct: the groups of a machine share its network cards.
    """
    here = max(1, min(term.processes, CORES // stride))
    inside = term.sent_bytes / LINK_BYTES
    if here == term.processes:
        return inside
    if term.kind == "all-to-all":
        away = (term.processes - here) / (term.processes - 1)
        return max(inside, CORES * term.sent_bytes * away / MACHINE_BYTES)
    return max(inside, CORES / here * term.sent_bytes / MACHINE_BYTES)


def project(model: str, seq_len: int, degrees: Degrees) -> dict[str, Any]:
    """A step of Trainium2 cores: arithmetic at `BUSY`, and every mesh's traffic after it."""
    entry = registry.get(model)
    ran = setting(degrees, seq_len, gathered_bytes=2)
    tokens = ran.rows * seq_len
    compute = tokens * entry.family.flops_per_token(entry.size, seq_len) / degrees.tp / (PEAK_FLOPS * BUSY)
    inner = {"tp": 1, "fsdp": degrees.tp, "ep": 1, "efsdp": degrees.ep, "dp_replicate": degrees.tp * degrees.dp_shard}
    meshes: dict[str, dict[str, float]] = {}
    for term in sent.sent(entry.size, native_shapes(entry), ran):
        mesh = meshes.setdefault(term.mesh, {"calls": 0, "bytes": 0, "seconds": 0})
        mesh["calls"] += term.calls
        mesh["bytes"] += term.sent_bytes
        mesh["seconds"] += seconds(term, inner[term.mesh])
    return {
        "model": model,
        "cores": degrees.world_size,
        "layout": degrees.describe(),
        "tokens": tokens * degrees.data,
        "compute_seconds": compute,
        "meshes": meshes,
        "share": compute / (compute + sum(mesh["seconds"] for mesh in meshes.values())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--worker", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(Path(given.worker[0]), given.worker[1:])
        return
    if given.project:
        rows = [project(*planned) for planned in PLANNED]
    else:
        rows = [row for n in given.processes for name in LAYOUTS if (n > 1 or name == "FSDP2")
                and (row := measure(name, n)) is not None]  # fmt: skip
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    if not given.project:
        print(f"{MODEL}, {SEQ_LEN} tokens a process, {os.cpu_count()} cores for all of them")
        print("| layout | processes | seconds a step | peak of one process, MiB | MB sent, counted | foreseen |" + LINE)
        for row in rows:
            print(
                f"| {row['layout']} | {row['processes']} | {row['seconds']:.2f} | {row['peak_bytes'] / 2**20:.0f} "
                f"| {row['sent_bytes'] / 1e6:.3f} | {row['foreseen_bytes'] / 1e6:.3f} |"
            )
        return
    print(
        "| model | cores | layout | computing, ms | sent: GB in calls, ms | computing share, nothing overlapped |"
        + LINE
    )
    for row in rows:
        parts = [
            f"{name} {mesh['bytes'] / 1e9:.1f} in {mesh['calls']:.0f}, {1e3 * mesh['seconds']:.0f}"
            for name, mesh in row["meshes"].items()
        ]
        print(
            f"| {row['model']} | {row['cores']:,} | {row['layout']} | {1e3 * row['compute_seconds']:.0f} "
            f"| {'; '.join(parts)} | {row['share']:.0%} |"
        )


if __name__ == "__main__":
    main()
