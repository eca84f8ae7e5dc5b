"""How many processes share what: degrees from the options, and what cannot be, before any process starts. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from trnt.errors import UsageError

AUTO = -1
FLAGS = {"dp_replicate": "--dp-replicate", "dp_shard": "--dp-shard", "tp": "--tp", "cp": "--cp", "pp": "--pp"}
# Schedules of torch.distributed.pipelining by the stages that a process has. Those that split the backward of inputs
# and weights (zero bubble, dual pipe) gave other gradients (5e-5 of the norm) in torch 2.13: not offered.
STAGES = {"1F1B": 1, "GPipe": 1, "Interleaved1F1B": 2, "LoopedBFS": 2}


@dataclass(frozen=True)
class Degrees:
    """Processes along each dimension; all but ep multiply to the number of processes."""

    dp_replicate: int = 1
    """Copies of the weights."""
    dp_shard: int = 1
    """Processes that hold parts of the weights and have rows of their own (FSDP)."""
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    """Processes that share the experts, out of dp_shard x cp x tp."""

    @property
    def world_size(self) -> int:
        return self.dp_replicate * self.dp_shard * self.tp * self.cp * self.pp

    @property
    def data(self) -> int:
        """Processes with rows of their own."""
        return self.dp_replicate * self.dp_shard

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    def describe(self) -> str:
        """`dp-shard 2 x tp 2`; the empty text for one process."""
        found = [f"{name.replace('_', '-')} {n}" for name, n in self.to_dict().items() if n > 1 and name != "ep"]
        return " x ".join(found) + (f", ep {self.ep}" if self.ep > 1 else "")


def resolve(asked: dict[str, int], given: set[str], world_size: int, num_experts: int) -> Degrees:
    """The degrees of `world_size` processes; -1 takes what is left, for ep as many as the experts allow.

    asked: a number for each of `FLAGS` and ep. given: which of them somebody chose. Raises UsageError when they do not
    multiply to the number of processes, with what would.
    """
    wanted = {name: asked[name] for name in FLAGS}
    if wanted["dp_shard"] == AUTO and "dp_shard" not in given and list(wanted.values()).count(AUTO) > 1:
        wanted["dp_shard"] = 1
    open_ones = [name for name, number in wanted.items() if number == AUTO]
    if len(open_ones) > 1:
        raise UsageError(
            f"{' and '.join(FLAGS[name] for name in open_ones)} cannot both be what is left", "give one of them"
        )
    fixed = math.prod(number for number in wanted.values() if number != AUTO)
    if world_size % fixed or (not open_ones and fixed != world_size):
        said = [f"{FLAGS[name]} {number}" for name, number in wanted.items() if number not in (1, AUTO)]
        cause = " x ".join(said) + (f" = {fixed}" if len(said) > 1 else "")
        if world_size % fixed == 0:
            raise UsageError(
                f"{cause or 'one process of data'} leaves some of the {world_size} processes idle",
                f"use --nproc {fixed}, or leave --dp-shard out: it takes what is left",
            )
        one = said[0].split()[0] if len(said) == 1 else None
        fix = f"use {one} {nearest_divisor(world_size, fixed)}, or --nproc {fixed}" if one else f"use --nproc {fixed}"
        raise UsageError(f"{cause} does not divide the {world_size} processes", fix)
    if open_ones:
        wanted[open_ones[0]] = world_size // fixed
    ep = asked["ep"]
    if ep == AUTO:
        ep = math.gcd(num_experts, wanted["dp_shard"] * wanted["cp"] * wanted["tp"]) if num_experts else 1
    return Degrees(**wanted, ep=ep)


def nearest_divisor(number: int, wanted: int, allowed: Callable[[int], bool] = lambda _: True) -> int:
    """The divisor of `number` nearest to `wanted`, the smaller of two."""
    divisors = [d for d in range(1, number + 1) if number % d == 0 and allowed(d)]
    return min(divisors, key=lambda d: (abs(d - wanted), d))


def check(degrees: Degrees, size: Any, settings: Any, *, chip_cores: int | None = None) -> None:
    """Raise UsageError for what this model and its rows cannot be split into, with the nearest that can.

    chip_cores: cores of one Trainium chip, None elsewhere: tensor parallelism stays inside a chip.
    """
    heads, kv_heads = size.num_heads, getattr(size, "num_kv_heads", size.num_heads)
    both = math.gcd(heads, kv_heads)
    if both % degrees.tp:
        raise UsageError(
            f"--tp {degrees.tp} does not divide the {heads} heads and {kv_heads} key-value heads",
            f"use --tp {nearest_divisor(both, degrees.tp)}",
        )
    if chip_cores is not None and degrees.tp > chip_cores:
        raise UsageError(
            f"--tp {degrees.tp} goes across chips: one has {chip_cores} cores", f"use --tp {chip_cores} or less"
        )
    mine, shared = heads // degrees.tp, kv_heads // degrees.tp
    fits = nearest_divisor(mine, degrees.cp, lambda cp: shared % cp == 0 or cp % shared == 0)
    if fits != degrees.cp:
        raise UsageError(f"--cp {degrees.cp} does not divide the {mine} heads of each process", f"use --cp {fits}")
    step = (degrees.tp if settings["sequence_parallel"] else 1) * (2 * degrees.cp if degrees.cp > 1 else 1)
    if settings["seq_len"] % step:
        raise UsageError(
            f"--seq-len {settings['seq_len']} cannot be cut for --cp {degrees.cp} and --tp {degrees.tp}",
            f"use --seq-len {-(-settings['seq_len'] // step) * step}",
        )
    check_experts(degrees, size)
    check_pipeline(degrees, size, settings)


def check_batch(degrees: Degrees, settings: Any) -> None:
    """Every process with rows of its own makes equally many forward passes."""
    rows, per_pass = settings["global_batch_size"], settings["batch_size"] * degrees.data
    if rows > 0 and rows % per_pass:
        shared = f" x {degrees.data} processes with rows of their own" if degrees.data > 1 else ""
        raise UsageError(
            f"--global-batch-size {rows} is not a multiple of --batch-size {settings['batch_size']}{shared}",
            f"use --global-batch-size {-(-rows // per_pass) * per_pass}",
        )


def check_experts(degrees: Degrees, size: Any) -> None:
    """Experts are shared evenly, by processes that would share the dense weights too."""
    if degrees.ep == 1:
        return
    if not size.num_experts:
        raise UsageError(f"--ep {degrees.ep} needs experts, and the model is dense", "leave --ep out")
    sharing = degrees.dp_shard * degrees.cp * degrees.tp
    common = math.gcd(size.num_experts, sharing)
    if common % degrees.ep:
        raise UsageError(
            f"--ep {degrees.ep} does not divide both the {size.num_experts} experts and dp-shard x cp x tp = {sharing}",
            f"use --ep {nearest_divisor(common, degrees.ep)}",
        )


def check_pipeline(degrees: Degrees, size: Any, settings: Any) -> None:
    """Every stage has a layer, every stage a microbatch, and the head has weights of its own."""
    if degrees.pp == 1:
        return
    schedule = settings["pp_schedule"]
    if schedule not in STAGES:
        raise UsageError(
            f"--pp-schedule {schedule} is not offered: torch splits its backward in two, with other gradients",
            "use --pp-schedule 1F1B or Interleaved1F1B",
        )
    if size.tied:
        raise UsageError(
            "--pp needs a head with weights of its own, and this model's is its embedding",
            "use --dp-shard or --tp, or a folder whose config.json says tie_word_embeddings false",
        )
    stages = degrees.pp * STAGES[schedule]
    if size.num_layers < stages:
        most = size.num_layers // STAGES[schedule]
        raise UsageError(
            f"--pp {degrees.pp} with {schedule} needs {stages} layers, and there are {size.num_layers}",
            f"use --pp {most}" if most > 1 or STAGES[schedule] == 1 else "use --pp-schedule 1F1B",
        )
    if settings["batch_size"] % degrees.pp:
        raise UsageError(
            f"--batch-size {settings['batch_size']} is cut in rows, one at a time, for {degrees.pp} stages",
            f"use --batch-size {-(-settings['batch_size'] // degrees.pp) * degrees.pp}",
        )
