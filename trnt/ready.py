"""Everything that is checked before any model is built."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import Any

from trnt import device, launch
from trnt.config import Settings
from trnt.elastic import Machines
from trnt.errors import UsageError
from trnt.kernels.choose import Kernels, choose
from trnt.models.registry import ModelEntry
from trnt.parallel import degrees
from trnt.parallel.degrees import Degrees
from trnt.starting import Beginning, begin


@dataclass(frozen=True)
class Ready:
    """Everything that was checked before any model is built."""

    settings: Settings
    tokens: Any
    kind: str
    precision: str
    beginning: Beginning
    kernels: Kernels
    """What computes routing and experts."""
    machines: Machines = field(default_factory=lambda: Machines(1))
    degrees: Degrees = field(default_factory=Degrees)

    @property
    def entry(self) -> ModelEntry:
        """The model, cut."""
        return self.beginning.entry

    @property
    def native(self) -> bool:
        """Whether torchtitan's model code with trnt's kernels computes it."""
        return bool(self.settings["backend"] == "native")


def prepare(settings: Settings) -> Ready:
    """Check the model, the batch, the data, the tokenizer and the device. Raises UsageError or TrntError."""
    from trnt.data.tokenizer import check_vocabulary
    from trnt.data.tokens import check_length
    from trnt.data.tokens import prepare as prepare_tokens

    beginning = begin(settings)
    entry, origin = beginning.entry, beginning.origin
    if settings["moe_balance"] != "none" and not entry.size.num_experts:
        raise UsageError(
            f"--moe-balance {settings['moe_balance']} needs experts, and {entry.name} is dense",
            "leave --moe-balance out, or choose a mixture of experts such as qwen3-tiny-moe",
        )
    if settings["seq_len"] > entry.size.max_seq_len:
        raise UsageError(
            f"--seq-len {settings['seq_len']} is longer than {entry.name} allows ({entry.size.max_seq_len})",
            f"use --seq-len {entry.size.max_seq_len} or less",
        )
    tokenizer = settings["tokenizer"] or (origin.tokenizer if origin is not None else None)
    tokens = prepare_tokens(settings["data"], tokenizer, settings["text_field"])
    check_length(tokens, settings["seq_len"])
    check_vocabulary(tokens, entry.size.vocab_size, entry.name)
    kind = device.ensure(settings["device"])
    precision = settings["precision"] or ("fp32" if kind == "cpu" else "mixed")
    kernels = Kernels("torch", "")
    if settings["backend"] == "native":
        kernels = choose(settings["kernels"], kind, entry.size.num_experts, entry.size.top_k)
    machines = machines_of(settings, kind)
    return Ready(
        settings, tokens, kind, precision, beginning, kernels, machines, degrees_of(settings, entry, machines, kind)
    )


def machines_of(settings: Settings, kind: str) -> Machines:
    """The processes that are asked for, or those that a launcher has started. Raises UsageError where they differ."""
    nproc = settings["nproc"]
    if nproc == degrees.AUTO:
        nproc = device.count() if kind != "cpu" else 1
    asked = Machines(nproc, settings["nnodes"], settings["node_rank"], settings["rdzv_endpoint"])
    if asked.node_rank >= asked.nnodes:
        raise UsageError(
            f"--node-rank {asked.node_rank} of --nnodes {asked.nnodes}", f"number them 0 to {asked.nnodes - 1}"
        )
    if asked.nnodes > 1 and (asked.endpoint is None or settings["out"] is None):
        raise UsageError(
            "several machines need one place to meet and one name for the run",
            "give --rdzv-endpoint HOST:PORT of machine 0 and --out, the same on every machine",
        )
    if not launch.launched():
        return asked
    if settings.given("nproc") and asked.world_size != launch.world_size():
        raise UsageError(
            f"--nproc {nproc} x --nnodes {asked.nnodes}, but the launcher has started {launch.world_size()}",
            "leave --nproc and --nnodes out under another launcher",
        )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", launch.world_size()))
    return Machines(here, launch.world_size() // here)


def degrees_of(
    settings: Settings, entry: ModelEntry, machines: Machines, kind: str, chip_cores: int | None = None
) -> Degrees:
    """The checked degrees of a run. chip_cores: of a Trainium chip elsewhere; of this machine's where it is None."""
    names = [*degrees.FLAGS, "ep"]
    asked = {name: settings[name] for name in names}
    given = {name for name in names if settings.given(name)}
    found = degrees.resolve(asked, given, machines.world_size, entry.size.num_experts)
    degrees.check_batch(found, settings)
    if settings["backend"] == "transformers":
        for name in ("tp", "cp", "pp", "ep"):
            if asked[name] != 1:
                raise UsageError(f"--{name} is for --backend native", "use --dp-shard or --dp-replicate")
        if settings["fsdp"] != "fsdp2":
            raise UsageError("--fsdp simple is for --backend native", "leave --fsdp out")
        return found
    if chip_cores is None and kind == "neuron":
        chip_cores = 8 if os.environ.get("NEURON_LOGICAL_NC_CONFIG") == "1" else 4
    degrees.check(found, entry.size, settings, chip_cores=chip_cores)
    return found


def check_cluster(settings: Settings, instance: str) -> Machines:
    """The processes of a run on machines of that type, its degrees checked. Nothing of this machine is asked.

    Raises UsageError for what cannot be, for an unknown type, or for one that TorchNeuron does not support.
    """
    from trnt.doctor import facts

    known = facts.instance(instance)
    if not known.cores_lnc2:
        raise UsageError(f"TorchNeuron needs Trn2 or Trn3, and {instance} is older", "use --instance trn2.48xlarge")
    if settings["out"] is None:
        raise UsageError("the machines need one name for the run", "give --out FOLDER, where all of them see it")
    cores = known.cores_lnc2
    counted = settings.given("nproc") and settings["nproc"] != degrees.AUTO
    machines = Machines(settings["nproc"] if counted else cores, settings["nnodes"])
    degrees_of(settings, begin(settings).entry, machines, "neuron", chip_cores=cores // known.chips)
    return machines


def identity(ready: Ready) -> dict[str, Any]:
    """What must be equal for a run to be resumed with the same result."""
    settings, origin = ready.settings, ready.beginning.origin
    found = {
        "model": ready.entry.name,
        "layers": ready.entry.size.num_layers,
        "experts": ready.entry.size.num_experts,
        "moe_balance": settings["moe_balance"],
        "data": ready.tokens.fingerprint,
        "seq_len": settings["seq_len"],
        "seed": settings["seed"],
        "shuffle": settings["shuffle"],
        "precision": ready.precision,
        "optimizer": settings["optimizer"],
    }
    if not ready.native:
        found["backend"] = settings["backend"]
    if origin is not None and settings["init_from"] is None:  # the name does not say what the model is
        text = json.dumps(origin.config, sort_keys=True)
        found["config"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found
