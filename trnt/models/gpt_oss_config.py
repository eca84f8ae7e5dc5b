"""GPT-OSS's config.json, written and read. No torch."""

from __future__ import annotations

from typing import Any

from trnt.errors import TrntError
from trnt.models import shared
from trnt.models.gpt_oss import FULL, ONLY, SLIDING, GptOssSize

# What transformers takes where a file says nothing of rope: the published values.
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def hf_config(size: GptOssSize, *, dtype: str, eos_id: int | None = None, pad_id: int | None = None) -> dict[str, Any]:
    """config.json in the classic rope form, with the names that both transformers and the published files use."""
    scaling: dict[str, Any] = {"rope_type": "default"}  # left out, it would mean YARN
    if size.rope_factor != 1:
        scaling = {
            "rope_type": "yarn",
            "factor": size.rope_factor,
            "beta_fast": size.rope_beta_fast,
            "beta_slow": size.rope_beta_slow,
            "truncate": False,
            "original_max_position_embeddings": size.rope_original_length,
        }
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
        "dtype": dtype,
        "experts_per_token": size.top_k,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "hidden_size": size.hidden_size,
        "initial_context_length": size.rope_original_length,
        "initializer_range": 0.02,
        "intermediate_size": size.moe_intermediate_size,
        "layer_types": [SLIDING if size.slides(layer) else FULL for layer in range(size.num_layers)],
        "max_position_embeddings": size.max_seq_len,
        "num_attention_heads": size.num_heads,
        "num_experts_per_tok": size.top_k,
        "num_hidden_layers": size.num_layers,
        "num_key_value_heads": size.num_kv_heads,
        "num_local_experts": size.num_experts,
        "output_router_logits": False,
        "rms_norm_eps": size.rms_norm_eps,
        "rope_scaling": scaling,
        "rope_theta": size.rope_theta,
        "router_aux_loss_coef": 0.001,
        "sliding_window": size.sliding_window,
        "swiglu_alpha": 1.702,
        "swiglu_limit": size.swiglu_limit,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": size.vocab_size,
    }


def size_from_hf_config(config: dict[str, Any]) -> GptOssSize:
    """The reverse of `hf_config`, for old and new files. Raises TrntError for what this family does not have."""
    shared.only(config, ONLY, "GPT-OSS")
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    said = config.get("rope_parameters") or config.get("rope_scaling")
    if not said:
        config = {**config, "rope_scaling": YARN}
    if config.get("rope_theta") is None and "rope_theta" not in (config.get("rope_parameters") or {}):
        config = {**config, "rope_theta": 1.5e5}
    theta, scaling = shared.rope(config, "GPT-OSS", ("default", "yarn"))
    stretched: dict[str, Any] = {"rope_factor": 1.0}
    if scaling["rope_type"] == "yarn":
        if scaling.get("truncate", True) or scaling.get("attention_factor") or scaling.get("mscale"):
            raise TrntError(
                "config.json asks for yarn with rounded cut-offs or a factor of its own, which trnt's GPT-OSS does not "
                "have",
                'set "truncate": false if that is how the weights were trained, or use another model',
            )
        stretched = {
            "rope_factor": float(scaling["factor"]),
            "rope_original_length": int(scaling.get("original_max_position_embeddings") or 4096),
            "rope_beta_fast": float(scaling.get("beta_fast") or 32.0),
            "rope_beta_slow": float(scaling.get("beta_slow") or 1.0),
        }
    return GptOssSize(
        num_layers=layers,
        hidden_size=config["hidden_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=config["vocab_size"],
        num_experts=config.get("num_local_experts") or config["num_experts"],
        top_k=config.get("num_experts_per_tok") or config["experts_per_token"],
        moe_intermediate_size=config["intermediate_size"],
        sliding_window=config.get("sliding_window") or 128,
        layer_types=layer_types(config.get("layer_types"), layers),
        swiglu_limit=float(config.get("swiglu_limit", 7.0)),
        rope_theta=theta,
        max_seq_len=config["max_position_embeddings"],
        rms_norm_eps=config.get("rms_norm_eps", 1e-5),
        **stretched,
    )


def layer_types(given: list[str] | None, layers: int) -> tuple[str, ...]:
    """The kind of each layer, () where they come in turns. Raises TrntError for another kind or a wrong number."""
    turns = tuple(FULL if layer % 2 else SLIDING for layer in range(layers))
    if given is None or tuple(given) == turns:
        return ()
    if len(given) != layers or set(given) - {SLIDING, FULL}:
        raise TrntError(
            f"config.json names {len(given)} layer_types ({', '.join(sorted(set(given)))}) for {layers} layers",
            f"each layer is {SLIDING} or {FULL}",
        )
    return tuple(given)
