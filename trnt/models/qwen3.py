"""Qwen3, dense and mixture of experts: sizes, torchtitan config, Hugging Face config, names. No torch at import.

Sources: the published config.json files as recorded in the installed torchtitan 0.3.0 (`models/qwen3`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trnt.errors import TrntError
from trnt.models import shared
from trnt.models.names import Fused, Row
from trnt.models.shared import cut as cut  # a family's function


@dataclass(frozen=True)
class Qwen3Size:
    """The numbers of one Qwen3 model; `num_experts` 0 means dense."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool
    intermediate_size: int = 0
    num_experts: int = 0
    top_k: int = 0
    moe_intermediate_size: int = 0
    norm_topk: bool = True
    """Whether a token's top_k scores are scaled to add up to one."""
    rope_theta: float = 1e6
    max_seq_len: int = 40960
    rms_norm_eps: float = 1e-6

    @property
    def attention_values(self) -> int:
        """Values that attention keeps for its backward, per token: q and k before their norm, after it and after
        RoPE, v, the output, log-sum-exps, and RoPE's cosines and sines."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return 4 * q + 4 * kv + 2 * self.head_dim + 2 * self.num_heads + self.num_kv_heads


def _dense(layers: int, hidden: int, heads: int, ffn: int, tied: bool) -> Qwen3Size:
    return Qwen3Size(layers, hidden, heads, 8, 128, 151936, tied, intermediate_size=ffn)


def _moe(layers: int, hidden: int, heads: int, experts: int, top_k: int, width: int, theta: float) -> Qwen3Size:
    return Qwen3Size(
        layers, hidden, heads, 4, 128, 151936, False,
        num_experts=experts, top_k=top_k, moe_intermediate_size=width, rope_theta=theta,
    )  # fmt: skip


SIZES: dict[str, Qwen3Size] = {
    "qwen3-tiny": Qwen3Size(2, 128, 4, 2, 32, 4096, True, intermediate_size=384, rope_theta=1e4, max_seq_len=8192),
    "qwen3-tiny-moe": Qwen3Size(
        4, 256, 8, 4, 32, 4096, True,
        num_experts=16, top_k=4, moe_intermediate_size=192, rope_theta=1e4, max_seq_len=8192,
    ),
    "qwen3-0.6b": _dense(28, 1024, 16, 3072, True),
    "qwen3-1.7b": _dense(28, 2048, 16, 6144, True),
    "qwen3-4b": _dense(36, 2560, 32, 9728, True),
    "qwen3-8b": _dense(36, 4096, 32, 12288, False),
    "qwen3-14b": _dense(40, 5120, 40, 17408, False),
    "qwen3-32b": _dense(64, 5120, 64, 25600, False),
    "qwen3-30b-a3b": _moe(48, 2048, 32, 128, 8, 768, 1e6),
    "qwen3-235b-a22b": _moe(94, 4096, 64, 128, 8, 1536, 5e6),
}  # fmt: skip

# Hub names, in lower case and without suffixes, whose form is not that of SIZES.
HUB_NAMES: dict[str, str] = {}
MODEL_TYPES = ("qwen3", "qwen3_moe")
# What config.json may say of these, where it says anything: torchtitan's Qwen3 has nothing else.
ONLY = {"attention_bias": False, "use_sliding_window": False, "hidden_act": "silu"}
EXPERT_KEYS = ("num_experts", "num_local_experts")  # config.json's; engines read one or the other
# Hub name <-> native name. {layer} and {expert} count up; `experts` stacks X along dimension 0 in the order of X.
TABLE: tuple[Row, ...] = (
    Row("model.embed_tokens.weight", "tok_embeddings.weight", "VD"),
    Row("model.layers.{layer}.input_layernorm.weight", "layers.{layer}.attention_norm.weight", "D"),
    Row("model.layers.{layer}.self_attn.q_proj.weight", "layers.{layer}.attention.qkv_linear.wq.weight", "QD"),
    Row("model.layers.{layer}.self_attn.k_proj.weight", "layers.{layer}.attention.qkv_linear.wk.weight", "KD"),
    Row("model.layers.{layer}.self_attn.v_proj.weight", "layers.{layer}.attention.qkv_linear.wv.weight", "KD"),
    Row("model.layers.{layer}.self_attn.o_proj.weight", "layers.{layer}.attention.wo.weight", "DQ"),
    Row("model.layers.{layer}.self_attn.q_norm.weight", "layers.{layer}.attention.q_norm.weight", "H"),
    Row("model.layers.{layer}.self_attn.k_norm.weight", "layers.{layer}.attention.k_norm.weight", "H"),
    Row("model.layers.{layer}.post_attention_layernorm.weight", "layers.{layer}.ffn_norm.weight", "D"),
    Row("model.layers.{layer}.mlp.gate_proj.weight", "layers.{layer}.feed_forward.w1.weight", "FD", when="dense"),
    Row("model.layers.{layer}.mlp.up_proj.weight", "layers.{layer}.feed_forward.w3.weight", "FD", when="dense"),
    Row("model.layers.{layer}.mlp.down_proj.weight", "layers.{layer}.feed_forward.w2.weight", "DF", when="dense"),
    Row("model.layers.{layer}.mlp.gate.weight", "layers.{layer}.moe.router.gate.weight", "ED", when="moe"),
    Row(
        "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
        "layers.{layer}.moe.routed_experts.inner_experts.w1_EFD", "ID", transform="experts", when="moe",
    ),
    Row(
        "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
        "layers.{layer}.moe.routed_experts.inner_experts.w3_EFD", "ID", transform="experts", when="moe",
    ),
    Row(
        "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
        "layers.{layer}.moe.routed_experts.inner_experts.w2_EDF", "DI", transform="experts", when="moe",
    ),
    Row("model.norm.weight", "norm.weight", "D"),
    Row("lm_head.weight", "lm_head.weight", "VD", transform="tied"),
)  # fmt: skip
# The layout that transformers holds in memory and `save_pretrained(save_original_format=False)` writes.
FUSED = (
    Fused(
        "model.layers.{layer}.mlp.experts.gate_up_proj",
        (
            "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
            "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
        ),
    ),
    Fused(
        "model.layers.{layer}.mlp.experts.down_proj", ("model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",)
    ),
)
# Native tensors that Hugging Face has no place for; the export says when one is not zero.
DROPPED = ("layers.{layer}.moe.expert_bias_E",)


def row_kinds(size: Qwen3Size, layer: int) -> set[str]:
    """Which rows of the table a layer has: all layers are alike."""
    del layer
    return {"moe" if size.num_experts else "dense"}


def dimensions(size: Qwen3Size) -> dict[str, int]:
    """What the letters of the table's shapes stand for."""
    return {
        "V": size.vocab_size,
        "D": size.hidden_size,
        "Q": size.num_heads * size.head_dim,
        "K": size.num_kv_heads * size.head_dim,
        "H": size.head_dim,
        "F": size.intermediate_size,
        "E": size.num_experts,
        "I": size.moe_intermediate_size,
    }


def count_params(size: Qwen3Size) -> tuple[int, int]:
    """(all parameters, those that one token meets): exact; a tied head is the embedding and counts once."""
    d = dimensions(size)
    attention = 2 * d["D"] * d["Q"] + 2 * d["D"] * d["K"] + 2 * d["H"]
    norms = 2 * d["D"]
    if size.num_experts:
        expert = 3 * d["D"] * d["I"]
        router = d["D"] * d["E"]
        total_ffn, active_ffn = router + d["E"] * expert, router + size.top_k * expert
    else:
        total_ffn = active_ffn = 3 * d["D"] * d["F"]
    ends = d["V"] * d["D"] * (1 if size.tied else 2) + d["D"]
    total, active = (ends + size.num_layers * (attention + norms + ffn) for ffn in (total_ffn, active_ffn))
    return total, active


def flops_per_token(size: Qwen3Size, seq_len: int) -> int:
    """FLOPs of forward and backward per token: 6 per active matmul weight, and causal attention.

    The embedding is looked up, not multiplied; the head is. Attention: 2 matmuls x 2 FLOPs x 3 (forward and backward)
    x heads x head_dim x seq_len, half of it by causality (PaLM, arXiv 2204.02311, appendix B, counts it whole).
    """
    _, active = count_params(size)
    d = dimensions(size)
    lookup = 0 if size.tied else d["V"] * d["D"]
    return 6 * (active - lookup) + 6 * size.num_layers * d["Q"] * seq_len


def titan_spec(name: str, size: Qwen3Size, parallelize_fn: Callable[..., Any] | None = None) -> Any:
    """A torchtitan `ModelSpec` of fresh config objects, through torchtitan's own builders."""
    from trnt import device

    device.ensure()
    import torchtitan.models.qwen3 as titan
    from torchtitan.models.common import CosSinRoPE, Embedding, Linear

    rope = CosSinRoPE.Config(dim=size.head_dim, max_seq_len=size.max_seq_len, theta=size.rope_theta)
    common = {
        "n_layers": size.num_layers,
        "dim": size.hidden_size,
        "n_heads": size.num_heads,
        "n_kv_heads": size.num_kv_heads,
        "head_dim": size.head_dim,
        "attn_backend": "varlen",
        "rope": rope,
    }
    if size.num_experts:
        layers = titan._build_qwen3_moe_layers(
            **common,
            moe_hidden_dim=size.moe_intermediate_size,
            num_experts=size.num_experts,
            top_k=size.top_k,
            moe_comm_backend="standard",
        )
        for layer in layers:
            layer.moe.router.route_norm = size.norm_topk
    else:
        layers = titan._build_qwen3_layers(**common, hidden_dim=size.intermediate_size)
    embedding_init = titan._EMBEDDING_SKIP_INIT if size.tied else titan._EMBEDDING_INIT
    model = titan.Qwen3Model.Config(
        vocab_size=size.vocab_size,
        dim=size.hidden_size,
        norm=titan._qwen3_norm(size.hidden_size),
        enable_weight_tying=size.tied,
        tok_embeddings=Embedding.Config(
            num_embeddings=size.vocab_size, embedding_dim=size.hidden_size, param_init=embedding_init
        ),
        lm_head=Linear.Config(
            in_features=size.hidden_size, out_features=size.vocab_size, param_init=titan._LINEAR_INIT
        ),
        layers=layers,
    )
    return shared.spec(
        "qwen3", name, size, model, parallelize_fn or titan.parallelize_qwen3, titan.Qwen3StateDictAdapter
    )


def hf_config(size: Qwen3Size, *, dtype: str, eos_id: int | None = None, pad_id: int | None = None) -> dict[str, Any]:
    """config.json. The classic rope form is read by transformers 4 and 5; both counts of experts are written, equal."""
    moe = bool(size.num_experts)
    config: dict[str, Any] = {
        "architectures": ["Qwen3MoeForCausalLM" if moe else "Qwen3ForCausalLM"],
        "model_type": "qwen3_moe" if moe else "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
        "dtype": dtype,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "hidden_size": size.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": size.intermediate_size or 3 * size.hidden_size,
        "max_position_embeddings": size.max_seq_len,
        "max_window_layers": size.num_layers,
        "num_attention_heads": size.num_heads,
        "num_hidden_layers": size.num_layers,
        "num_key_value_heads": size.num_kv_heads,
        "rms_norm_eps": size.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": size.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": size.tied,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": size.vocab_size,
    }
    if moe:
        config |= {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": size.moe_intermediate_size,
            "norm_topk_prob": size.norm_topk,
            "num_experts": size.num_experts,
            "num_local_experts": size.num_experts,
            "num_experts_per_tok": size.top_k,
            "output_router_logits": False,
            "router_aux_loss_coef": 0.001,
        }
    return config


def size_from_hf_config(config: dict[str, Any]) -> Qwen3Size:
    """The reverse of `hf_config`, for old (`rope_theta`) and new (`rope_parameters`) files.

    Raises TrntError when a file says two different things, or asks for what this family does not have.
    """
    counts = {config[key] for key in EXPERT_KEYS if config.get(key) is not None}
    moe = config["model_type"] == "qwen3_moe"
    if moe and len(counts) != 1:
        raise TrntError(f"config.json must name one number of experts, it has {sorted(counts)}", "correct num_experts")
    if moe and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
        raise TrntError("config.json mixes dense and expert layers", "this family has experts in every layer")
    shared.only(config, ONLY, "Qwen3")
    theta, _ = shared.rope(config, "Qwen3")
    heads = config["num_attention_heads"]
    return Qwen3Size(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        intermediate_size=0 if moe else config["intermediate_size"],
        num_experts=counts.pop() if moe else 0,
        top_k=config["num_experts_per_tok"] if moe else 0,
        moe_intermediate_size=config["moe_intermediate_size"] if moe else 0,
        norm_topk=bool(config.get("norm_topk_prob", False)) if moe else True,  # transformers' default is false
        rope_theta=theta,
        max_seq_len=config["max_position_embeddings"],
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
    )
