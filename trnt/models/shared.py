"""What families have in common: cutting, and config.json's fields that speak of layers or come in two forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trnt.errors import TrntError, UsageError


def cut(name: str, size: Any, layers: int | None, experts: int | None) -> Any:
    """The first `layers` layers and `experts` experts. Raises UsageError for what cannot be cut."""
    if layers is not None and not 1 <= layers <= size.num_layers:
        raise UsageError(
            f"--layers {layers}: {name} has {size.num_layers} layers", f"use --layers 1 to {size.num_layers}"
        )
    if experts is not None and not size.num_experts:
        raise UsageError(f"--experts {experts}: {name} is dense, it has no experts", "leave --experts out")
    if experts is not None and not 1 <= experts <= size.num_experts:
        raise UsageError(
            f"--experts {experts}: {name} has {size.num_experts} experts",
            f"use --experts {size.top_k} to {size.num_experts}",
        )
    if experts is not None and experts < size.top_k:
        raise UsageError(
            f"--experts {experts} is fewer than top_k: each token of {name} goes to {size.top_k} experts",
            f"use --experts {size.top_k} or more",
        )
    return replace(size, num_layers=layers or size.num_layers, num_experts=experts or size.num_experts)


def shallower(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """A config.json's fields that speak of layers, for the first few."""
    found: dict[str, Any] = {"num_hidden_layers": layers}
    if isinstance(config.get("layer_types"), list):
        found["layer_types"] = config["layer_types"][:layers]
    if isinstance(config.get("mlp_only_layers"), list):
        found["mlp_only_layers"] = [number for number in config["mlp_only_layers"] if number < layers]
    if isinstance(config.get("max_window_layers"), int):
        found["max_window_layers"] = min(config["max_window_layers"], layers)
    return found


def rope(config: dict[str, Any], family: str, kinds: tuple[str, ...] = ("default",)) -> tuple[float, dict[str, Any]]:
    """(theta, the scaling's fields with `rope_type`) of old (`rope_theta`, `rope_scaling`) and new (`rope_parameters`)
    files. theta is 10,000 where the file does not say, as in transformers.

    Raises TrntError when a file says two different things, or asks for a scaling that the family does not have.
    """
    new = config.get("rope_parameters") or {}
    old_theta, new_theta = config.get("rope_theta"), new.get("rope_theta")
    if old_theta is not None and new_theta is not None and old_theta != new_theta:
        raise TrntError(
            f"config.json has rope_theta {old_theta} and rope_parameters {new_theta}", "keep the one that is right"
        )
    scaling = dict(config.get("rope_scaling") or new)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in kinds:
        raise TrntError(
            f"config.json asks for {kind} rope scaling, which trnt's {family} does not have", "use another model"
        )
    scaling["rope_type"] = kind
    theta = old_theta if old_theta is not None else new_theta if new_theta is not None else 10000.0
    return float(theta), scaling


def only(config: dict[str, Any], wanted: dict[str, Any], family: str) -> None:
    """Raise TrntError when a file asks for what the family does not have; a field it leaves out is fine."""
    for key, value in wanted.items():
        if config.get(key, value) != value:
            raise TrntError(
                f"config.json has {key} {config[key]!r}, and trnt's {family} has {value!r}", "use another model"
            )


def ends(titan: Any, size: Any) -> dict[str, Any]:
    """Embedding, last norm and head of a decoder config, with the initialisations of a family's torchtitan module."""
    from torchtitan.models.common import Embedding, Linear, RMSNorm

    embedding_init = titan._EMBEDDING_SKIP_INIT if size.tied else titan._EMBEDDING_INIT
    return {
        "tok_embeddings": Embedding.Config(
            num_embeddings=size.vocab_size, embedding_dim=size.hidden_size, param_init=embedding_init
        ),
        "norm": RMSNorm.Config(normalized_shape=size.hidden_size, param_init=titan._NORM_INIT),
        "lm_head": Linear.Config(
            in_features=size.hidden_size,
            out_features=size.vocab_size,
            param_init=titan._output_linear_init(size.hidden_size),
        ),
    }


def spec(family: str, name: str, size: Any, model: Any, parallelize_fn: Any, adapter: Any) -> Any:
    """The torchtitan `ModelSpec` of a decoder config, its norms with the size's eps."""
    from torchtitan.components.optimizer import register_moe_load_balancing_hook
    from torchtitan.distributed.pipeline_parallel import pipeline_llm
    from torchtitan.protocols.model_spec import ModelSpec

    for _, norm, _, _ in model.traverse(type(model.norm)):
        norm.eps = size.rms_norm_eps
    return ModelSpec(
        name=family,
        flavor=name,
        model=model,
        parallelize_fn=parallelize_fn,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=register_moe_load_balancing_hook if size.num_experts else None,
        state_dict_adapter=adapter,
    )
