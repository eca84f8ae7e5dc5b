"""Llama 3, 3.1, 3.2, 3.3, and other models of the Llama architecture: sizes, configs, names. No torch at import.

Sources: the published config.json files; where the installed torchtitan 0.3.0 differs (it scales RoPE in Llama 3.0 too,
and by 8 in 3.2), the published ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trnt.models import shared
from trnt.models.names import Row
from trnt.models.shared import cut as cut  # a family's function


@dataclass(frozen=True)
class Llama3Size:
    """The numbers of one Llama model."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool
    intermediate_size: int
    rope_theta: float = 5e5
    rope_factor: float = 1.0
    """How far RoPE is stretched (rope_type llama3); 1 means not at all."""
    rope_low_freq_factor: float = 1.0
    rope_high_freq_factor: float = 4.0
    rope_original_length: int = 8192
    max_seq_len: int = 131072
    rms_norm_eps: float = 1e-5
    num_experts: int = 0
    top_k: int = 0
    moe_intermediate_size: int = 0

    @property
    def attention_values(self) -> int:
        """Values that attention keeps for its backward, per token: q and k after RoPE, v, the output, log-sum-exps, and
        RoPE's rotations."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return 2 * q + 2 * kv + self.head_dim + self.num_heads


def _size(layers: int, hidden: int, heads: int, ffn: int, factor: float, **more: Any) -> Llama3Size:
    options = {"tied": False, "head_dim": hidden // heads, **more}
    return Llama3Size(layers, hidden, heads, 8, vocab_size=128256, intermediate_size=ffn, rope_factor=factor, **options)


SIZES: dict[str, Llama3Size] = {
    "llama3-tiny": Llama3Size(2, 128, 4, 2, 32, 4096, True, 384, rope_theta=1e4, max_seq_len=8192),
    "llama3-8b": _size(32, 4096, 32, 14336, 1, max_seq_len=8192),
    "llama3-70b": _size(80, 8192, 64, 28672, 1, max_seq_len=8192),
    "llama3.1-8b": _size(32, 4096, 32, 14336, 8),
    "llama3.1-70b": _size(80, 8192, 64, 28672, 8),
    "llama3.1-405b": _size(126, 16384, 128, 53248, 8),
    "llama3.2-1b": _size(16, 2048, 32, 8192, 32, tied=True),
    "llama3.2-3b": _size(28, 3072, 24, 8192, 32, tied=True),
    "llama3.3-70b": _size(80, 8192, 64, 28672, 8),
}
# Hub names, in lower case and without -instruct, whose form is not that of SIZES.
HUB_NAMES = {
    **{f"meta-llama-3-{n}": f"llama3-{n}" for n in ("8b", "70b")},
    **{f"meta-llama-3.1-{n}": f"llama3.1-{n}" for n in ("8b", "70b", "405b")},
    **{f"llama-{name.removeprefix('llama')}": name for name in SIZES if name[6:7] == "."},
}

MODEL_TYPES = ("llama",)
ONLY = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}
EXPERT_KEYS: tuple[str, ...] = ()
TABLE: tuple[Row, ...] = (
    Row("model.embed_tokens.weight", "tok_embeddings.weight", "VD"),
    Row("model.layers.{layer}.input_layernorm.weight", "layers.{layer}.attention_norm.weight", "D"),
    Row(
        "model.layers.{layer}.self_attn.q_proj.weight", "layers.{layer}.attention.qkv_linear.wq.weight", "QD",
        transform="rotary",
    ),
    Row(
        "model.layers.{layer}.self_attn.k_proj.weight", "layers.{layer}.attention.qkv_linear.wk.weight", "KD",
        transform="rotary",
    ),
    Row("model.layers.{layer}.self_attn.v_proj.weight", "layers.{layer}.attention.qkv_linear.wv.weight", "KD"),
    Row("model.layers.{layer}.self_attn.o_proj.weight", "layers.{layer}.attention.wo.weight", "DQ"),
    Row("model.layers.{layer}.post_attention_layernorm.weight", "layers.{layer}.ffn_norm.weight", "D"),
    Row("model.layers.{layer}.mlp.gate_proj.weight", "layers.{layer}.feed_forward.w1.weight", "FD"),
    Row("model.layers.{layer}.mlp.up_proj.weight", "layers.{layer}.feed_forward.w3.weight", "FD"),
    Row("model.layers.{layer}.mlp.down_proj.weight", "layers.{layer}.feed_forward.w2.weight", "DF"),
    Row("model.norm.weight", "norm.weight", "D"),
    Row("lm_head.weight", "lm_head.weight", "VD", transform="tied"),
)  # fmt: skip
FUSED: tuple[Any, ...] = ()
DROPPED: tuple[str, ...] = ()


def row_kinds(size: Llama3Size, layer: int) -> set[str]:
    """Which rows of the table a layer has beside those that always are: none."""
    del size, layer
    return set()


def dimensions(size: Llama3Size) -> dict[str, int]:
    """What the letters of the table's shapes stand for; H is the head, whose halves RoPE rotates."""
    return {
        "V": size.vocab_size,
        "D": size.hidden_size,
        "Q": size.num_heads * size.head_dim,
        "K": size.num_kv_heads * size.head_dim,
        "H": size.head_dim,
        "F": size.intermediate_size,
    }


def count_params(size: Llama3Size) -> tuple[int, int]:
    """(all parameters, those that one token meets): exact; a tied head is the embedding and counts once."""
    d = dimensions(size)
    layer = 2 * d["D"] * d["Q"] + 2 * d["D"] * d["K"] + 2 * d["D"] + 3 * d["D"] * d["F"]
    total = d["V"] * d["D"] * (1 if size.tied else 2) + d["D"] + size.num_layers * layer
    return total, total


def flops_per_token(size: Llama3Size, seq_len: int) -> int:
    """FLOPs of forward and backward per token: 6 per matmul weight, and causal attention (see `qwen3`)."""
    total, _ = count_params(size)
    d = dimensions(size)
    lookup = 0 if size.tied else d["V"] * d["D"]
    return 6 * (total - lookup) + 6 * size.num_layers * d["Q"] * seq_len


def titan_spec(name: str, size: Llama3Size, parallelize_fn: Callable[..., Any] | None = None) -> Any:
    """A torchtitan `ModelSpec` of fresh config objects, through torchtitan's own builders."""
    from trnt import device

    device.ensure()
    import torchtitan.models.llama3 as titan
    from torchtitan.models.common import ComplexRoPE
    from torchtitan.models.common.config_utils import get_attention_config, make_gqa_config

    rope = ComplexRoPE.Config(
        dim=size.head_dim,
        max_seq_len=size.max_seq_len,
        theta=size.rope_theta,
        scaling="none" if size.rope_factor == 1 else "llama",
        scaling_factor=size.rope_factor,
        low_freq_factor=size.rope_low_freq_factor,
        high_freq_factor=size.rope_high_freq_factor,
        original_max_position_embeddings=size.rope_original_length,
    )
    common = {
        "dim": size.hidden_size,
        "n_heads": size.num_heads,
        "n_kv_heads": size.num_kv_heads,
        "fuse_qkv": True,
        "rope": rope,
    }
    layers = titan._build_llama3_layers(
        n_layers=size.num_layers, hidden_dim=size.intermediate_size, attn_backend="varlen", **common
    )
    for number, layer in enumerate(layers):
        layer.attention = make_gqa_config(  # the builder's own, with a head that need not be hidden_size / num_heads
            head_dim=size.head_dim,
            wqkv_param_init=titan._LINEAR_INIT,
            wo_param_init=titan._depth_init(number),
            inner_attention=get_attention_config("varlen"),
            **common,
        )
    model = titan.Llama3Model.Config(
        dim=size.hidden_size,
        vocab_size=size.vocab_size,
        enable_weight_tying=size.tied,
        layers=layers,
        **shared.ends(titan, size),
    )
    return shared.spec(
        "llama3", name, size, model, parallelize_fn or titan.parallelize_llama, titan.Llama3StateDictAdapter
    )


def hf_config(size: Llama3Size, *, dtype: str, eos_id: int | None = None, pad_id: int | None = None) -> dict[str, Any]:
    """config.json in the classic rope form, which transformers 4 and 5 read."""
    scaling = None
    if size.rope_factor != 1:
        scaling = {
            "rope_type": "llama3",
            "factor": size.rope_factor,
            "low_freq_factor": size.rope_low_freq_factor,
            "high_freq_factor": size.rope_high_freq_factor,
            "original_max_position_embeddings": size.rope_original_length,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
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
        "intermediate_size": size.intermediate_size,
        "max_position_embeddings": size.max_seq_len,
        "mlp_bias": False,
        "num_attention_heads": size.num_heads,
        "num_hidden_layers": size.num_layers,
        "num_key_value_heads": size.num_kv_heads,
        "rms_norm_eps": size.rms_norm_eps,
        "rope_scaling": scaling,
        "rope_theta": size.rope_theta,
        "tie_word_embeddings": size.tied,
        "use_cache": True,
        "vocab_size": size.vocab_size,
    }


def size_from_hf_config(config: dict[str, Any]) -> Llama3Size:
    """The reverse of `hf_config`, for old and new files. Raises TrntError for what this family does not have."""
    shared.only(config, ONLY, "Llama")
    theta, scaling = shared.rope(config, "Llama", ("default", "llama3"))
    heads = config["num_attention_heads"]
    stretched = scaling["rope_type"] == "llama3"
    given = Llama3Size(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        intermediate_size=config["intermediate_size"],
        rope_theta=theta,
        max_seq_len=config["max_position_embeddings"],
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
    )
    if not stretched:
        return given
    return replace(
        given,
        rope_factor=float(scaling["factor"]),
        rope_low_freq_factor=float(scaling["low_freq_factor"]),
        rope_high_freq_factor=float(scaling["high_freq_factor"]),
        rope_original_length=int(scaling["original_max_position_embeddings"]),
    )
