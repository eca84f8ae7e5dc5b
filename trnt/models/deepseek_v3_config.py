"""DeepSeek-V3's config.json, written and read. No torch."""

from __future__ import annotations

from typing import Any

from trnt.errors import TrntError
from trnt.models import shared
from trnt.models.deepseek_v3 import ONLY, DeepSeekV3Size


def hf_config(
    size: DeepSeekV3Size, *, dtype: str, eos_id: int | None = None, pad_id: int | None = None
) -> dict[str, Any]:
    """config.json in the classic rope form. num_nextn_predict_layers is 0: no such layer is in the files."""
    scaling = None
    if size.rope_factor != 1:
        scaling = {
            "type": "yarn",
            "factor": size.rope_factor,
            "beta_fast": size.rope_beta_fast,
            "beta_slow": size.rope_beta_slow,
            "mscale": size.rope_mscale,
            "mscale_all_dim": size.rope_mscale,
            "original_max_position_embeddings": size.rope_original_length,
        }
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
        "dtype": dtype,
        "first_k_dense_replace": size.first_dense,
        "hidden_act": "silu",
        "hidden_size": size.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": size.intermediate_size,
        "kv_lora_rank": size.kv_lora_rank,
        "max_position_embeddings": size.max_seq_len,
        "moe_intermediate_size": size.moe_intermediate_size,
        "moe_layer_freq": 1,
        "n_group": size.n_group,
        "n_routed_experts": size.num_experts,
        "n_shared_experts": size.num_shared_experts,
        "norm_topk_prob": size.norm_topk,
        "num_attention_heads": size.num_heads,
        "num_experts_per_tok": size.top_k,
        "num_hidden_layers": size.num_layers,
        "num_key_value_heads": size.num_heads,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": size.q_lora_rank or None,
        "qk_nope_head_dim": size.qk_nope_head_dim,
        "qk_rope_head_dim": size.qk_rope_head_dim,
        "rms_norm_eps": size.rms_norm_eps,
        "rope_interleave": True,
        "rope_scaling": scaling,
        "rope_theta": size.rope_theta,
        "routed_scaling_factor": size.route_scale,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": size.tied,
        "topk_group": size.topk_group,
        "topk_method": "noaux_tc",
        "use_cache": True,
        "v_head_dim": size.v_head_dim,
        "vocab_size": size.vocab_size,
    }


def size_from_hf_config(config: dict[str, Any]) -> DeepSeekV3Size:
    """The reverse of `hf_config`, for old and new files. Raises TrntError for what this family does not have."""
    shared.only(config, ONLY, "DeepSeek-V3")
    theta, scaling = shared.rope(config, "DeepSeek-V3", ("default", "yarn"))
    if config.get("quantization_config"):
        raise TrntError(
            "config.json says that the weights are quantised, and trnt does not dequantise yet",
            "convert a bf16 copy of the model",
        )
    yarn: dict[str, Any] = {}
    if scaling["rope_type"] == "yarn":
        mscale = float(scaling.get("mscale_all_dim") or 0)
        if not mscale or float(scaling.get("mscale", mscale)) != mscale:
            raise TrntError(
                "config.json has mscale and mscale_all_dim that differ, which torchtitan's attention cannot do",
                "use another model",
            )
        yarn = {
            "rope_factor": float(scaling["factor"]),
            "rope_original_length": int(scaling["original_max_position_embeddings"]),
            "rope_beta_fast": float(scaling.get("beta_fast") or 32),
            "rope_beta_slow": float(scaling.get("beta_slow") or 1),
            "rope_mscale": mscale,
        }
    return DeepSeekV3Size(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        num_heads=config["num_attention_heads"],
        vocab_size=config["vocab_size"],
        intermediate_size=config["intermediate_size"],
        first_dense=config["first_k_dense_replace"],
        num_experts=config.get("n_routed_experts") or config["num_local_experts"],
        top_k=config["num_experts_per_tok"],
        moe_intermediate_size=config["moe_intermediate_size"],
        num_shared_experts=config["n_shared_experts"],
        n_group=config["n_group"],
        topk_group=config["topk_group"],
        route_scale=float(config["routed_scaling_factor"]),
        q_lora_rank=config.get("q_lora_rank") or 0,
        kv_lora_rank=config["kv_lora_rank"],
        qk_nope_head_dim=config["qk_nope_head_dim"],
        qk_rope_head_dim=config["qk_rope_head_dim"],
        v_head_dim=config["v_head_dim"],
        norm_topk=bool(config.get("norm_topk_prob", True)),
        tied=bool(config.get("tie_word_embeddings", False)),
        rope_theta=theta,
        max_seq_len=config["max_position_embeddings"],
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        **yarn,
    )
