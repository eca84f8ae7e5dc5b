"""GPT-OSS: attention with sinks, windows in every other layer, experts with biases and a clamped SwiGLU.

Sizes: the published config.json of gpt-oss-20b and gpt-oss-120b, as the installed torchtitan 0.3.0 has them too. Its
own state-dict adapter names no expert tensor rightly, so the table here is made from the two model definitions. No
torch at import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trnt.models import shared
from trnt.models.names import Row
from trnt.models.shared import cut as cut  # a family's function

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class GptOssSize:
    """The numbers of one GPT-OSS model."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_experts: int
    top_k: int
    moe_intermediate_size: int
    sliding_window: int = 128
    """Keys that a query of a sliding layer sees, itself included."""
    layer_types: tuple[str, ...] = ()
    """Of each layer, sliding_attention or full_attention; () means in turns, sliding first."""
    swiglu_limit: float = 7.0
    rope_theta: float = 1.5e5
    rope_factor: float = 32.0
    """How far RoPE is stretched (yarn, cut-offs not rounded); 1 means not at all."""
    rope_original_length: int = 4096
    rope_beta_fast: float = 32.0
    rope_beta_slow: float = 1.0
    max_seq_len: int = 131072
    rms_norm_eps: float = 1e-5
    tied: bool = False
    intermediate_size: int = 0

    @property
    def attention_values(self) -> int:
        """Values that attention keeps for its backward, per token: q and k after RoPE, v, the output, log-sum-exps, and
        RoPE's cosines and sines."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return 2 * q + 2 * kv + 2 * self.head_dim + self.num_heads

    def slides(self, layer: int) -> bool:
        """Whether a layer's attention has the window."""
        return self.layer_types[layer] == SLIDING if self.layer_types else layer % 2 == 0


SIZES: dict[str, GptOssSize] = {
    "gpt-oss-tiny": GptOssSize(
        4, 128, 4, 2, 32, 4096, 8, 2, 96, sliding_window=32, rope_theta=1e4, rope_factor=1, max_seq_len=8192
    ),
    "gpt-oss-20b": GptOssSize(24, 2880, 64, 8, 64, 201088, 32, 4, 2880),
    "gpt-oss-120b": GptOssSize(36, 2880, 64, 8, 64, 201088, 128, 4, 2880),
}
HUB_NAMES: dict[str, str] = {}  # openai/gpt-oss-20b is found by its own name
MODEL_TYPES = ("gpt_oss",)
ONLY = {"attention_bias": True, "hidden_act": "silu", "swiglu_alpha": 1.702, "tie_word_embeddings": False}
EXPERT_KEYS = ("num_local_experts", "num_experts")


def _layer(hf: str, native: str, shape: str, **more: Any) -> Row:
    return Row(f"model.layers.{{layer}}.{hf}", f"layers.{{layer}}.{native}", shape, **more)


def _linear(hf: str, native: str, shape: str) -> tuple[Row, Row]:
    return _layer(f"{hf}.weight", f"{native}.weight", shape), _layer(f"{hf}.bias", f"{native}.bias", shape[0])


_INNER = "moe.routed_experts.inner_experts"
# Experts: bf16 files hold [E, in, out], torchtitan [E, out, in]; both keep gate and up in alternating columns or rows.
TABLE: tuple[Row, ...] = (
    Row("model.embed_tokens.weight", "tok_embeddings.weight", "VD"),
    _layer("input_layernorm.weight", "attention_norm.weight", "D"),
    *_linear("self_attn.q_proj", "attention.qkv_linear.wq", "QD"),
    *_linear("self_attn.k_proj", "attention.qkv_linear.wk", "KD"),
    *_linear("self_attn.v_proj", "attention.qkv_linear.wv", "KD"),
    *_linear("self_attn.o_proj", "attention.wo", "DQ"),
    _layer("self_attn.sinks", "attention.sinks", "N"),
    _layer("post_attention_layernorm.weight", "ffn_norm.weight", "D"),
    *_linear("mlp.router", "moe.router.gate", "ED"),
    _layer("mlp.experts.gate_up_proj", f"{_INNER}.mlp1_weight_EGD", "EDG", transform="transposed"),
    _layer("mlp.experts.gate_up_proj_bias", f"{_INNER}.mlp1_bias_EG", "EG"),
    _layer("mlp.experts.down_proj", f"{_INNER}.mlp2_weight_EDF", "EID", transform="transposed"),
    _layer("mlp.experts.down_proj_bias", f"{_INNER}.mlp2_bias_ED", "ED"),
    Row("model.norm.weight", "norm.weight", "D"),
    Row("lm_head.weight", "lm_head.weight", "VD", transform="tied"),
)
FUSED: tuple[Any, ...] = ()
# Native tensors that Hugging Face has no place for; the export says when one is not zero.
DROPPED = ("layers.{layer}.moe.expert_bias_E",)


def row_kinds(size: GptOssSize, layer: int) -> set[str]:
    """Which rows of the table a layer has: all layers are alike."""
    del size, layer
    return {"moe"}


def dimensions(size: GptOssSize) -> dict[str, int]:
    """What the letters of the table's shapes stand for: G is gate and up together, N the heads."""
    return {
        "V": size.vocab_size,
        "D": size.hidden_size,
        "Q": size.num_heads * size.head_dim,
        "K": size.num_kv_heads * size.head_dim,
        "H": size.head_dim,
        "N": size.num_heads,
        "E": size.num_experts,
        "I": size.moe_intermediate_size,
        "G": 2 * size.moe_intermediate_size,
    }


def count_params(size: GptOssSize) -> tuple[int, int]:
    """(all parameters, those that one token meets): exact."""
    d = dimensions(size)
    attention = 2 * d["D"] * d["Q"] + 2 * d["D"] * d["K"] + d["Q"] + 2 * d["K"] + d["D"] + d["N"]
    common = attention + 2 * d["D"] + d["E"] * (d["D"] + 1)
    expert = 3 * d["D"] * d["I"] + d["G"] + d["D"]
    ends = 2 * d["V"] * d["D"] + d["D"]
    total, active = (ends + size.num_layers * (common + n * expert) for n in (size.num_experts, size.top_k))
    return total, active


def flops_per_token(size: GptOssSize, seq_len: int) -> int:
    """FLOPs of forward and backward per token: 6 per active matmul weight, and causal attention (see `qwen3`).

    A sliding layer's query sees at most the window; half of a row's queries see less than the causal average beyond it.
    """
    _, active = count_params(size)
    d = dimensions(size)
    window = min(size.sliding_window, seq_len)
    seen = 2 * window - window * window // seq_len  # twice the mean number of keys, as seq_len is for a full layer
    lengths = sum(seen if size.slides(layer) else seq_len for layer in range(size.num_layers))
    return 6 * (active - d["V"] * d["D"]) + 6 * d["Q"] * lengths


def titan_spec(name: str, size: GptOssSize, parallelize_fn: Callable[..., Any] | None = None) -> Any:
    """A torchtitan `ModelSpec` of fresh config objects, through torchtitan's own builders."""
    from trnt import device

    device.ensure()
    import torchtitan.models.gpt_oss as titan
    from torchtitan.models.common import CosSinRoPE

    rope = CosSinRoPE.Config(
        dim=size.head_dim,
        max_seq_len=size.max_seq_len,
        theta=size.rope_theta,
        scaling="none" if size.rope_factor == 1 else "yarn",
        rope_factor=size.rope_factor,
        beta_fast=size.rope_beta_fast,
        beta_slow=size.rope_beta_slow,
        truncate=False,
        original_seq_len=size.rope_original_length,
    )
    layers = titan._build_gptoss_layers(
        dim=size.hidden_size,
        n_layers=size.num_layers,
        hidden_dim=size.moe_intermediate_size,
        num_experts=size.num_experts,
        top_k=size.top_k,
        load_balance_coeff=1e-3,
        attn_backend="varlen",
        moe_comm_backend="standard",
        rope=rope,
    )
    for number, layer in enumerate(layers):  # the builder's own, with sizes that need not be the published ones
        layer.attention = titan._make_gptoss_attn_config(
            dim=size.hidden_size,
            layer_id=number,
            n_heads=size.num_heads,
            n_kv_heads=size.num_kv_heads,
            head_dim=size.head_dim,
            sliding_window_size=size.sliding_window if size.slides(number) else None,
            rope=rope,
        )
        layer.moe.routed_experts.inner_experts.swiglu_limit = size.swiglu_limit
    model = titan.GptOssModel.Config(
        dim=size.hidden_size, vocab_size=size.vocab_size, layers=layers, **shared.ends(titan, size)
    )
    return shared.spec(
        "gpt_oss", name, size, model, parallelize_fn or titan.parallelize_gptoss, titan.GptOssStateDictAdapter
    )


def hf_config(size: GptOssSize, **options: Any) -> dict[str, Any]:
    """config.json, see `gpt_oss_config`."""
    from trnt.models import gpt_oss_config

    return gpt_oss_config.hf_config(size, **options)


def size_from_hf_config(config: dict[str, Any]) -> GptOssSize:
    """The reverse of `hf_config`. Raises TrntError for what this family does not have."""
    from trnt.models import gpt_oss_config

    return gpt_oss_config.size_from_hf_config(config)
