"""Resolved options -> one torchtitan `Trainer.Config`, with trnt's parts in its seams.

torchtitan's own dotted options are applied last, so that what a user wrote is what runs.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints

from trnt import device

device.ensure()

import pydantic
from torchtitan.components.optimizer import ParamGroupConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

from trnt import console
from trnt.data.loader import TextDataLoader
from trnt.errors import TrntError, UsageError, nearest
from trnt.kernels.loss import ChunkedLoss
from trnt.kernels.swap import swap
from trnt.optim.container import Optimizers
from trnt.parallel import context
from trnt.parallel.apply import parallelize
from trnt.parallel.degrees import STAGES
from trnt.parallel.memory import Choice
from trnt.parallel.simple_fsdp import GatheredLoss
from trnt.ready import Ready
from trnt.runs import Start
from trnt.trainer import Trainer

PRECISIONS = {"fp32": ("float32", "float32"), "mixed": ("float32", "bfloat16"), "bf16": ("bfloat16", "bfloat16")}
# torch's fused AdamW exists for CPU and CUDA.
IMPLEMENTATION: dict[str, Any] = {"cpu": "fused", "cuda": "fused", "neuron": "for-loop"}
CHECKPOINTING: dict[str, Any] = {
    "none": None,
    "selective": SelectiveAC.Config(),
    "full": FullAC.Config(),
}
LOSSES = {"fsdp2": ChunkedLoss.Config, "simple": GatheredLoss.Config}
VECTORS = r"norm|bias|sinks|\bln_"  # native names and transformers'
# Parts of the tree that are trnt's to decide; setting them by hand would be ignored or break the run.
RESERVED = {
    "model_spec": "use --model, --layers and --experts",
    "checkpoint.enable": "leave it out: a run always saves its last step",
    "training.disable_cuda_graphs": "leave it out: there are no CUDA graphs here",
    "validator.enable": "leave it out: there is no validation yet",
    "checkpoint.initial_load_path": "use --resume PATH",
    "checkpoint.load_step": "use --resume RUN/checkpoint/step-N",
    "dataloader.token_cache": "use --data",
    "gradient_dtype": "use --gradient-dtype",
    "trim_memory": "leave it out: a run that is short of memory does it",
    "activation_checkpoint": "use --ac",
}


def assemble(ready: Ready, start: Start, choice: Choice) -> Trainer.Config:
    """Build the whole config of a checked run; `choice` says how its tensors are kept.

    Raises UsageError for an unknown dotted option or a value of the wrong type, TrntError for `neuron` compile
    without a Neuron device.
    """
    settings, entry, tokens, kind = ready.settings, ready.entry, ready.tokens, ready.kind
    spec = entry.family.titan_spec(entry.name, entry.size, parallelize_fn=partial(parallelize, fsdp=settings["fsdp"]))
    if ready.native:
        swap(spec.model, moe_balance=settings["moe_balance"], kernels=ready.kernels.name)
    if settings["moe_balance"] != "bias":
        spec.post_optimizer_build_fn = None  # it would move the experts' biases
    config = Trainer.Config(
        model_spec=spec,
        hf_assets_path=str(tokens.tokenizer_path),
        dump_folder=str(start.out),
        loss=LOSSES[settings["fsdp"]](),
        dataloader=TextDataLoader.Config(
            token_cache=str(tokens.path), seed=settings["seed"], shuffle=settings["shuffle"]
        ),
        optimizer=Optimizers.Config(
            param_groups=param_groups(
                settings["optimizer"], settings["lr"] or usual_lr(entry.size.hidden_size), choice
            ),
            implementation=implementation(settings["optimizer"], kind, ready.machines.world_size),
            keep_gradients=not choice.release,
        ),
        activation_checkpoint=CHECKPOINTING[choice.recompute],
        gradient_dtype=choice.gradients,
        trim_memory=choice != Choice(),
    )
    config.loss.loss_fn.global_vocab_size = entry.size.vocab_size
    training, parallelism, checkpoint = config.training, config.parallelism, config.checkpoint
    training.steps = settings["steps"]
    training.seq_len = settings["seq_len"]
    training.local_batch_size = settings["batch_size"]
    training.global_batch_size = settings["global_batch_size"]
    training.disable_cuda_graphs = True
    training.dtype, training.mixed_precision_param = PRECISIONS[ready.precision]
    degrees = ready.degrees
    parallelism.data_parallel_replicate_degree = degrees.dp_replicate
    parallelism.data_parallel_shard_degree = degrees.dp_shard
    parallelism.tensor_parallel_degree = degrees.tp
    parallelism.context_parallel_degree = degrees.cp
    parallelism.pipeline_parallel_degree = degrees.pp
    parallelism.expert_parallel_degree = degrees.ep
    parallelism.enable_sequence_parallel = settings["sequence_parallel"]
    parallelism.pipeline_parallel_schedule = settings["pp_schedule"]
    if entry.size.num_layers < 2 * degrees.pp * STAGES.get(settings["pp_schedule"], 1):
        # torchtitan counts both ends as a layer each; with few layers a stage would have none
        parallelism.pipeline_parallel_first_stage_less_layers = 0
        parallelism.pipeline_parallel_last_stage_less_layers = 0
    parallelism.spmd_backend = "partial_dtensor"  # the default fails in FSDP2 on torch 2.13
    config.debug.seed = settings["seed"]
    config.debug.moe_force_load_balance = False
    config.comm.train_timeout_seconds = 3600  # a CPU step or a checkpoint may take long
    config.lr_scheduler.decay_type = "cosine"
    config.lr_scheduler.min_lr_factor = 0.1
    warmup = settings["warmup"]
    config.lr_scheduler.warmup_steps = max(1, settings["steps"] // 10) if warmup is None else warmup
    if settings["compile"] != "none":
        config.compile.enable = True
        config.compile.backend = settings["compile"]
        config.compile.components = ["model"]
    checkpoint.enable = True
    checkpoint.interval = settings["save_every"]
    checkpoint.last_save_model_only = False
    checkpoint.keep_latest_k = 2
    if start.source is not None:
        checkpoint.initial_load_path = str(start.source.resolve())
        checkpoint.initial_load_model_only = False
    if start.step is not None:
        checkpoint.load_step = start.step
    for key, value in settings.extra.items():
        set_dotted(config, key, value, settings.origins[key])
    config.loss.keep_head = parallelism.fsdp_reshard_after_forward != "always"
    config.loss.pipelined = degrees.pp > 1
    check_compile(config, kind)
    check_layout(ready.machines.world_size, settings["optimizer"])
    if degrees.cp > 1:
        spec.model = context.unseen(spec.model)
    return rebuilt(config)


def implementation(optimizer: str, kind: str, world_size: int) -> Any:
    """Which of torch's loops over parameters runs. Its fused SGD knows no sharded tensors."""
    return "foreach" if optimizer == "sgd" and world_size > 1 else IMPLEMENTATION[kind]


def check_layout(world_size: int, optimizer: str) -> None:
    """Raise UsageError for what is not built yet: it would train wrongly without a word."""
    if optimizer == "muon" and world_size > 1:
        raise UsageError(
            "muon on several processes is not built yet: it would take parts of matrices for matrices",
            "use --optimizer adamw",
        )


def usual_lr(hidden_size: int) -> float:
    """0.001, falling as 1 / hidden_size above 512, as a weight's stable step does (arXiv 2203.03466)."""
    return 1e-3 * min(1.0, 512 / hidden_size)


def param_groups(optimizer: str, lr: float, choice: Choice) -> list[ParamGroupConfig]:
    """Which optimizer updates which parameters, by name; the first match wins. Norms, biases and sinks have no decay.

    Betas are those usual for language models; reduced AdamW serves moments or gradients that are not fp32.
    """
    moments = {"betas": (0.9, 0.95), "eps": 1e-8}
    adamw, kwargs = "AdamW", {"lr": lr, **moments}
    if choice.states != "fp32" or choice.gradients != "fp32":
        adamw, kwargs = "ReducedAdamW", {"lr": lr, "moments": choice.states, **moments}
    rows: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
        "adamw": [(r".*", adamw, kwargs)],
        "adafactor": [(r".*", "Adafactor", {"lr": lr})],
        "muon": [(r"embed|lm_head", adamw, kwargs), (r".*", "Muon", {"lr": lr})],
        "sgd": [(r".*", "SGD", {"lr": lr, "momentum": 0.9})],
    }
    chosen = rows[optimizer]
    plain = (adamw, kwargs) if optimizer == "muon" else chosen[0][1:]
    return [
        ParamGroupConfig(pattern=pattern, optimizer_name=name, optimizer_kwargs={**options, "weight_decay": decay})
        for decay, (pattern, name, options) in ((0.0, (VECTORS, *plain)), *((0.1, row) for row in chosen))
    ]


def check_compile(config: Any, kind: str) -> None:
    """The neuron backend needs a Neuron device; a backend without `compile.enable` compiles nothing, said once."""
    backend = config.compile.backend
    if backend == "neuron" and kind != "neuron":
        raise TrntError(
            f"--compile neuron needs a Neuron device, and this run computes on {kind}",
            "use --compile none or inductor here, or run 'trnt doctor --require neuron' on the Trainium machine",
        )
    if backend != "inductor" and not config.compile.enable:
        console.warn(f"compile.backend is {backend} but nothing is compiled; --compile {backend} turns it on")


def rebuilt(config: Any) -> Any:
    """The same config constructed once more, so that torchtitan's own checks run on the edited values."""
    try:
        for name in ("checkpoint",):
            setattr(config, name, dataclasses.replace(getattr(config, name)))
        return dataclasses.replace(config)
    except ValueError as error:
        raise UsageError(str(error).splitlines()[0], "change the options it names") from None


def leaves(config: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Every dotted name of a config tree that can be set: name -> (owner, type hint)."""
    found: dict[str, tuple[Any, Any]] = {}
    hints = get_type_hints(type(config), include_extras=False)
    for item in dataclasses.fields(config):
        name, value = f"{prefix}{item.name}", getattr(config, item.name)
        if item.name == "model_spec":
            continue
        if dataclasses.is_dataclass(value):
            found.update(leaves(value, f"{name}."))
            if types.NoneType in get_args(hints[item.name]):
                found[name] = (config, types.NoneType)
        else:
            found[name] = (config, hints[item.name])
    return found


def set_dotted(config: Any, key: str, value: Any, origin: str) -> None:
    """Set one dotted option, converting text to the field's type.

    Raises UsageError for an unknown name (with the nearest one), a reserved one, or a value of another type.
    """
    said = f"--{key}" if origin == "flag" else f"'{key}' in {origin}"
    for name, instead in RESERVED.items():
        if key == name or key.startswith(f"{name}."):
            raise UsageError(f"{said} cannot be set by hand", instead)
    known = leaves(config)
    if key not in known:
        inside = [name for name in known if name.startswith(f"{key}.")]
        near = nearest(key, known)
        if inside:
            fix = "it has: " + ", ".join(sorted(inside)[:12])
        else:
            fix = f"did you mean '--{near}'?" if near else "'trnt train --print-config --json' lists every option"
        raise UsageError(f"unknown option {said}", fix)
    owner, hint = known[key]
    field = key.rpartition(".")[2]
    try:
        setattr(owner, field, convert(value, hint))
    except pydantic.ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise UsageError(f"{said}: {value!r} does not fit ({problem})", f"the type is {describe(hint)}") from None


def convert(value: Any, hint: Any) -> Any:
    """`value` as the type of a config field; text is read as that type ('none' is None, lists are comma-separated)."""
    if isinstance(value, str):
        options = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        if types.NoneType in options and value.lower() in ("none", "null"):
            return None
        if any(get_origin(option) is list for option in options):
            value = [part for part in value.split(",") if part]
    return pydantic.TypeAdapter(hint).validate_python(value)


def describe(hint: Any) -> str:
    """A type hint as a user reads it."""
    if get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    return getattr(hint, "__name__", str(hint))
