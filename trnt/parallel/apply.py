"""Applying parallelism, activation checkpointing and compile to a model, through torchtitan's own functions."""

from __future__ import annotations

from typing import Any

from trnt import device

device.ensure()

from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed.fsdp import disable_fsdp_gradient_division, get_fsdp_reshard_after_forward_policy
from torchtitan.models.qwen3.parallelize import parallelize_qwen3

from trnt.parallel import context, simple_fsdp, waited


def needs_fsdp(parallel_dims: Any, training: Any) -> bool:
    """Whether FSDP does anything but copy.

    One process that computes in its parameters' own dtype needs no FSDP: on a mesh of one, FSDP copies every parameter
    in and every gradient out at each step. With mixed precision it stays, because FSDP does the casts.
    """
    return parallel_dims.world_size > 1 or training.mixed_precision_param != training.dtype


def parallelize(model: Any, *, parallel_dims: Any, training: Any, fsdp: str = "fsdp2", **options: Any) -> Any:
    """torchtitan's parallelize function, with FSDP left out where it would only copy, and our context parallelism.

    fsdp: fsdp2, or simple (`parallel/simple_fsdp.py`).
    """
    alone = not needs_fsdp(parallel_dims, training)
    waited.keep_history()
    if parallel_dims.cp_enabled:
        for block in model.layers.values():
            context.spread(block.attention.inner_attention, parallel_dims.get_mesh("cp"))
        parallel_dims = context.Unseen(parallel_dims)
    shared = {"parallel_dims": parallel_dims, "training": training}
    simple = fsdp == "simple"
    model = parallelize_qwen3(model, **shared, skip_dp=alone or simple, **options)
    return simple_fsdp.apply(model, **shared) if simple and not alone else model


def parallelize_transformers(
    model: Any,
    *,
    parallel_dims: Any,
    training: Any,
    parallelism: Any,
    compile_config: Any,
    ac_config: Any,
    dump_folder: str,
    **options: Any,
) -> Any:
    """The same for a `models/transformers_model.py`: checkpointing and compile per layer, then FSDP2 or HSDP.

    A layer that torch.compile cannot take whole is compiled in parts: transformers' code is not torchtitan's.
    """
    del options
    if ac_config is not None:
        ac_config.build(dump_folder=dump_folder).apply(model)
    if compile_config.enable and "model" in compile_config.components:
        for layer in model.layers:
            layer.compile(backend=compile_config.backend)
    if not needs_fsdp(parallel_dims, training):
        return model
    names = ["dp_replicate", "fsdp"] if parallel_dims.dp_replicate_enabled else ["fsdp"]
    policy = MixedPrecisionPolicy(
        param_dtype=TORCH_DTYPE_MAP[training.mixed_precision_param],
        reduce_dtype=TORCH_DTYPE_MAP[training.mixed_precision_reduce],
    )
    shared = {"mesh": parallel_dims.get_mesh(names), "mp_policy": policy}
    reshard = get_fsdp_reshard_after_forward_policy(parallelism.fsdp_reshard_after_forward, pp_enabled=False)
    embedding, head = model.hf.get_input_embeddings(), model.head
    if head is None or head.weight is not embedding.weight:  # a tied weight stays with the root: it has one group
        for end in filter(None, (embedding, head)):
            fully_shard(end, **shared, reshard_after_forward=parallelism.fsdp_reshard_after_forward == "always")
    for layer in model.layers:
        fully_shard(layer, **shared, reshard_after_forward=reshard)
    fully_shard(model, **shared)
    disable_fsdp_gradient_division(model)
    return model


def sum_gradients(model_parts: list[Any]) -> None:
    """Reduce gradients by plain sums: gloo has no PREMUL_SUM, which torchtitan's divide factor would ask for."""
    for part in model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
