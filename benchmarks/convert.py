"""Converting a checkpoint, beside torchtitan's own steps, transformers' load and save, and `cp` with `sync`.

    python benchmarks/convert.py [--gb 4] [--work DIR] [--repeats 3] [--json]

The checkpoint: Qwen3-30B-A3B's layers with 64 experts in bf16, as many of them as come to `--gb` gigabytes, random
values, in shards of 2 GB, made first. Every contender runs in a process of its own, in turn, with the files in the page
cache, and ends with everything on the disk (`sync`). Memory is the process's most resident bytes from the start of the
conversion on, less those resident when its imports were done.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHARD = 2 * 10**9


def make(folder: Path, gb: float) -> Any:
    """Write the checkpoint. Returns its model's entry."""
    import torch

    from trnt.checkpoint import layout, mapping
    from trnt.models import registry

    layers = 1
    while 2 * entry_of(layers).family.count_params(entry_of(layers).size)[0] < gb * 1e9:
        layers += 1
    entry = registry.get("qwen3-30b-a3b").cut(layers, 64)
    folder.mkdir(parents=True)
    block = (torch.randn(1 << 25) * 0.02).bfloat16().view(torch.uint8).numpy().tobytes()
    made = layout.hf_layout(
        [layout.Target(n, "BF16", s, (layout.Part(None, 0, 0),)) for n, s in mapping.hf_shapes(entry).items()], SHARD
    )
    handles = {file: open(folder / file, "wb") for file in made.files}  # noqa: SIM115
    for file, front in made.literals:
        handles[file].write(front)
    for number, item in enumerate(made.items):
        begin, left = (number * 7919 * 2) % (len(block) // 2), item.target.nbytes
        handles[item.file].seek(item.offset)
        while left:
            left -= handles[item.file].write(block[begin : begin + min(left, len(block) - begin)])
            begin = 0
    for handle in handles.values():
        handle.close()
    made.finish(folder)
    config = entry.family.hf_config(entry.size, dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(config))
    return entry


def entry_of(layers: int) -> Any:
    from trnt.models import registry

    return registry.get("qwen3-30b-a3b").cut(layers, 64)


def trnt_import() -> None:
    import torch  # noqa: F401

    import trnt.converting
    from trnt.checkpoint import items

    items.frame("F32", (1,))
    del trnt


def run_trnt(source: Path, target: Path, *more: str) -> None:
    from trnt.cli import run

    assert run(["--quiet", "convert", str(source), str(target), *more]) == 0


def titan_model(source: Path) -> Any:
    """torchtitan's model of the checkpoint, without values, and its adapter."""
    from trnt import device

    device.ensure("cpu")
    import torch

    from trnt.checkpoint.assets import read_config
    from trnt.models import registry

    entry = registry.from_hf_config(read_config(source / "config.json"), "x")
    spec = entry.family.titan_spec("x", entry.size)
    with torch.device("cpu"):
        model = spec.model.build()
    model = model.to(torch.bfloat16)
    return model, spec.state_dict_adapter(spec.model, str(source))


def run_torchtitan_to_dcp(source: Path, target: Path) -> None:
    """The steps of its scripts/checkpoint_conversion/convert_from_hf.py."""
    model, adapter = titan_model(source)
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    hf = adapter.to_hf(model.state_dict())
    dcp.load(hf, storage_reader=HuggingFaceStorageReader(str(source)), no_dist=True)
    dcp.save(adapter.from_hf(hf), checkpoint_id=target, no_dist=True)
    os.sync()


def run_torchtitan_to_hf(source: Path, target: Path, config: Path) -> None:
    """The steps of its scripts/checkpoint_conversion/convert_to_hf.py."""
    model, adapter = titan_model(config)
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    state = model.state_dict()
    dcp.load(state, checkpoint_id=source, no_dist=True)
    writer = HuggingFaceStorageWriter(
        path=str(target),
        save_distributed=True,
        fqn_to_index_mapping=adapter.fqn_to_index_mapping,
        enable_consolidation=True,
        thread_count_consolidation=5,
    )
    dcp.save(adapter.to_hf(state), storage_writer=writer, no_dist=True)
    os.sync()


def run_transformers(source: Path, target: Path) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(source, dtype="auto").save_pretrained(target)
    os.sync()


def run_cp(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    os.sync()


def transformers_import() -> None:
    from transformers import AutoModelForCausalLM, Qwen3MoeForCausalLM

    del AutoModelForCausalLM, Qwen3MoeForCausalLM


CASES: dict[str, tuple[Any, Any, str]] = {
    "cp + sync": (run_cp, None, "hf"),
    "trnt hf -> dcp": (lambda s, t: run_trnt(s, t), trnt_import, "hf"),
    "trnt dcp -> hf": (lambda s, t: run_trnt(s, t, "--shard-size", "2GB"), trnt_import, "dcp"),
    "trnt hf -> hf": (lambda s, t: run_trnt(s, t, "--to", "hf", "--shard-size", "2GB"), trnt_import, "hf"),
    "trnt hf -> dcp, not verified": (lambda s, t: run_trnt(s, t, "--verify", "off"), trnt_import, "hf"),
    "torchtitan hf -> dcp": (run_torchtitan_to_dcp, trnt_import, "hf"),
    "torchtitan dcp -> hf": (lambda s, t: run_torchtitan_to_hf(s, t, s.parent / "hf"), trnt_import, "dcp"),
    "transformers load + save": (run_transformers, transformers_import, "hf"),
}


def one(name: str, source: Path, target: Path) -> dict[str, Any]:
    """Run one contender in this process."""
    function, imports, _ = CASES[name]
    if imports is not None:
        imports()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    bare = status("VmRSS")
    start = time.perf_counter()
    function(source, target)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes_above_bare": max(0, status("VmHWM") - bare)}


def status(field: str) -> int:
    """Bytes of this process that Linux counts under a name."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def alone(name: str, source: Path, target: Path) -> dict[str, Any]:
    """One contender in a process of its own; its output is removed."""
    words = [sys.executable, __file__, "--one", name, str(source), str(target)]
    os.sync()
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    shutil.rmtree(target, ignore_errors=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=4)
    parser.add_argument("--work", help="where the files are made  [default: a temporary folder]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", action="append", help="a contender's name; repeat for more")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one[0], Path(given.one[1]), Path(given.one[2]))))
        return
    with tempfile.TemporaryDirectory(dir=given.work) as name:
        work = Path(name)
        entry = make(work / "hf", given.gb)
        size = sum(path.stat().st_size for path in (work / "hf").iterdir())
        alone_into(work)
        chosen = given.only or list(CASES)
        found: dict[str, list[dict[str, Any]]] = {case: [] for case in chosen}
        for number in range(given.repeats):
            for case in chosen:
                found[case].append(alone(case, work / CASES[case][2], work / "out"))
                print(f"round {number + 1}: {case} {found[case][-1]['seconds']:.1f} s", file=sys.stderr)
    rows = {
        case: {
            "seconds": statistics.median(run["seconds"] for run in runs),
            "rounds": [run["seconds"] for run in runs],
            "bytes_above_bare": max(run["bytes_above_bare"] for run in runs),
        }
        for case, runs in found.items()
    }
    report = {"bytes": size, "layers": entry.size.num_layers, "contenders": rows}
    if given.json:
        print(json.dumps(report, indent=2))
        return
    print(f"{size / 1e9:.2f} GB, {entry.size.num_layers} layers of 64 experts, {os.cpu_count()} cores")
    print(f"{'':30} {'seconds':>8} {'MB/s':>7} {'of cp':>6} {'memory above bare':>18}  rounds")
    copied = rows.get("cp + sync", {}).get("seconds")
    for case, row in rows.items():
        share = f"{copied / row['seconds']:.2f}" if copied else ""
        rounds = ", ".join(f"{seconds:.1f}" for seconds in row["rounds"])
        print(
            f"{case:30} {row['seconds']:8.1f} {size / row['seconds'] / 1e6:7.0f} {share:>6} "
            f"{row['bytes_above_bare'] / 2**20:14.0f} MiB  {rounds}"
        )


def alone_into(work: Path) -> None:
    """The DCP folder that the ways back start from."""
    words = [sys.executable, "-m", "trnt", "--quiet", "convert", str(work / "hf"), str(work / "dcp")]
    subprocess.run(words, check=True, capture_output=True)


if __name__ == "__main__":
    main()
