"""DeepSeek-V3: latent attention, shared experts, dense first layers, group-limited routing with a correction bias.

Sizes: the published config.json of DeepSeek-V3, and the dimensions of torchtitan 0.3.0's "16B" and "236B" flavours
(those of DeepSeek-V2-Lite and V2) with V3's routing. Multi-token-prediction layers are not built. No torch at import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trnt.errors import UsageError
from trnt.models import shared
from trnt.models.names import Row

LATENT_EPS = 1e-6  # of the norms inside attention: transformers' and the published code's default, not rms_norm_eps


@dataclass(frozen=True)
class DeepSeekV3Size:
    """The numbers of one model. q_lora_rank 0: queries come from one matrix."""

    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    intermediate_size: int
    first_dense: int
    """Layers at the beginning that are dense."""
    num_experts: int
    top_k: int
    moe_intermediate_size: int
    num_shared_experts: int
    n_group: int
    topk_group: int
    route_scale: float
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    norm_topk: bool = True
    tied: bool = False
    rope_theta: float = 1e4
    rope_factor: float = 1.0
    """How far RoPE is stretched (yarn); 1 means not at all."""
    rope_original_length: int = 4096
    rope_beta_fast: float = 32.0
    rope_beta_slow: float = 1.0
    rope_mscale: float = 1.0
    max_seq_len: int = 163840
    rms_norm_eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        """Of queries and keys."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def num_kv_heads(self) -> int:
        """Every head has its own keys and values, made of one latent."""
        return self.num_heads

    @property
    def attention_values(self) -> int:
        """Values that attention keeps for its backward, per token: q and k joined, q's rotary part before and after, v
        padded to their size, the output, latents before and after their norms, log-sum-exps and rotations."""
        joined = self.num_heads * self.head_dim
        rotated = self.num_heads * self.qk_rope_head_dim
        latents = 2 * self.q_lora_rank + 3 * self.kv_lora_rank + 2 * self.qk_rope_head_dim
        return 4 * joined + rotated + self.num_heads * (self.v_head_dim + 1) + latents

    @property
    def extra_ffn_values(self) -> int:
        """The shared experts' gate, up, activation and product."""
        return 4 * self.num_shared_experts * self.moe_intermediate_size


SIZES: dict[str, DeepSeekV3Size] = {
    "deepseek-v3-tiny": DeepSeekV3Size(
        3, 128, 4, 4096, 256, 1, 8, 2, 64, 1, 4, 2, 2.5, 48, 32, 32, 16, 32, max_seq_len=8192
    ),
    "deepseek-v3-16b": DeepSeekV3Size(
        27, 2048, 16, 102400, 10944, 1, 64, 6, 1408, 2, 1, 1, 1.0, 0, 512, 128, 64, 128, rope_factor=40.0
    ),
    "deepseek-v3-236b": DeepSeekV3Size(
        60, 5120, 128, 102400, 12288, 1, 160, 6, 1536, 2, 8, 3, 16.0, 1536, 512, 128, 64, 128, rope_factor=40.0
    ),
    "deepseek-v3-671b": DeepSeekV3Size(
        61, 7168, 128, 129280, 18432, 3, 256, 8, 2048, 1, 8, 4, 2.5, 1536, 512, 128, 64, 128, rope_factor=40.0
    ),
}
HUB_NAMES = {"deepseek-v3": "deepseek-v3-671b", "deepseek-r1": "deepseek-v3-671b"}
MODEL_TYPES = ("deepseek_v3",)
ONLY = {
    "attention_bias": False,
    "hidden_act": "silu",
    "rope_interleave": True,
    "moe_layer_freq": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
EXPERT_KEYS = ("n_routed_experts",)


def _layer(hf: str, native: str, shape: str, **more: Any) -> Row:
    return Row(f"model.layers.{{layer}}.{hf}.weight", f"layers.{{layer}}.{native}", shape, **more)


def _experts(hf: str, native: str, shape: str) -> Row:
    native = f"moe.routed_experts.inner_experts.{native}"
    return _layer(f"mlp.experts.{{expert}}.{hf}", native, shape, transform="experts", when="moe")


TABLE: tuple[Row, ...] = (
    Row("model.embed_tokens.weight", "tok_embeddings.weight", "VD"),
    _layer("input_layernorm", "attention_norm.weight", "D"),
    _layer("self_attn.q_proj", "attention.wq.weight", "QD", when="q_direct"),
    _layer("self_attn.q_a_proj", "attention.wq_a.weight", "LD", when="q_lora"),
    _layer("self_attn.q_a_layernorm", "attention.q_norm.weight", "L", when="q_lora"),
    _layer("self_attn.q_b_proj", "attention.wq_b.weight", "QL", when="q_lora"),
    _layer("self_attn.kv_a_proj_with_mqa", "attention.wkv_a.weight", "AD"),
    _layer("self_attn.kv_a_layernorm", "attention.kv_norm.weight", "C"),
    _layer("self_attn.kv_b_proj", "attention.wkv_b.weight", "BC"),
    _layer("self_attn.o_proj", "attention.wo.weight", "DO"),
    _layer("post_attention_layernorm", "ffn_norm.weight", "D"),
    _layer("mlp.gate_proj", "feed_forward.w1.weight", "FD", when="dense"),
    _layer("mlp.up_proj", "feed_forward.w3.weight", "FD", when="dense"),
    _layer("mlp.down_proj", "feed_forward.w2.weight", "DF", when="dense"),
    _layer("mlp.gate", "moe.router.gate.weight", "ED", when="moe"),
    Row(
        "model.layers.{layer}.mlp.gate.e_score_correction_bias", "layers.{layer}.moe.expert_bias_E", "E",
        when="moe", dtype="F32",
    ),
    _experts("gate_proj", "w1_EFD", "ID"),
    _experts("up_proj", "w3_EFD", "ID"),
    _experts("down_proj", "w2_EDF", "DI"),
    _layer("mlp.shared_experts.gate_proj", "moe.shared_experts.w1.weight", "SD", when="moe"),
    _layer("mlp.shared_experts.up_proj", "moe.shared_experts.w3.weight", "SD", when="moe"),
    _layer("mlp.shared_experts.down_proj", "moe.shared_experts.w2.weight", "DS", when="moe"),
    Row("model.norm.weight", "norm.weight", "D"),
    Row("lm_head.weight", "lm_head.weight", "VD", transform="tied"),
)  # fmt: skip
FUSED: tuple[Any, ...] = ()
DROPPED: tuple[str, ...] = ()


def row_kinds(size: DeepSeekV3Size, layer: int) -> set[str]:
    """Which rows of the table a layer has."""
    return {"dense" if layer < size.first_dense else "moe", "q_lora" if size.q_lora_rank else "q_direct"}


def dimensions(size: DeepSeekV3Size) -> dict[str, int]:
    """What the letters of the table's shapes stand for: A and B are the latent's matrices, C and L the latents."""
    return {
        "V": size.vocab_size,
        "D": size.hidden_size,
        "Q": size.num_heads * size.head_dim,
        "L": size.q_lora_rank,
        "A": size.kv_lora_rank + size.qk_rope_head_dim,
        "B": size.num_heads * (size.qk_nope_head_dim + size.v_head_dim),
        "C": size.kv_lora_rank,
        "O": size.num_heads * size.v_head_dim,
        "H": size.head_dim,
        "F": size.intermediate_size,
        "E": size.num_experts,
        "I": size.moe_intermediate_size,
        "S": size.num_shared_experts * size.moe_intermediate_size,
    }


def cut(name: str, size: DeepSeekV3Size, layers: int | None, experts: int | None) -> DeepSeekV3Size:
    """The first layers and experts. Raises UsageError for what leaves no expert layer, or groups that do not divide."""
    found: DeepSeekV3Size = shared.cut(name, size, layers, experts)
    if found.num_layers <= size.first_dense:
        raise UsageError(
            f"--layers {layers} leaves no layer with experts: the first {size.first_dense} of {name} are dense",
            f"use --layers {size.first_dense + 1} or more",
        )
    if not fits_groups(found, found.num_experts):
        usable = [n for n in range(found.top_k, size.num_experts + 1) if fits_groups(found, n)]
        nearest = min(usable, key=lambda n: abs(n - found.num_experts))
        raise UsageError(
            f"--experts {experts}: {name} chooses among {size.topk_group} of {size.n_group} equal groups of experts",
            f"use --experts {nearest}",
        )
    return found


def fits_groups(size: DeepSeekV3Size, experts: int) -> bool:
    """Whether so many experts form equal groups of two or more, of which enough are chosen from."""
    each = experts // size.n_group
    return experts % size.n_group == 0 and each >= 2 and size.topk_group * each >= size.top_k


def count_params(size: DeepSeekV3Size) -> tuple[int, int]:
    """(all parameters, those that one token meets): exact."""
    d = dimensions(size)
    queries = d["D"] * d["L"] + d["L"] + d["L"] * d["Q"] if size.q_lora_rank else d["D"] * d["Q"]
    attention = queries + d["D"] * d["A"] + d["C"] + d["C"] * d["B"] + d["O"] * d["D"]
    expert = 3 * d["D"] * d["I"]
    common = d["D"] * d["E"] + 3 * d["D"] * d["S"]
    dense, sparse = size.first_dense, size.num_layers - size.first_dense
    base = 2 * d["V"] * d["D"] + d["D"] + size.num_layers * (attention + 2 * d["D"]) + dense * 3 * d["D"] * d["F"]
    total = base + sparse * (common + d["E"] * expert)
    return total, base + sparse * (common + size.top_k * expert)


def flops_per_token(size: DeepSeekV3Size, seq_len: int) -> int:
    """FLOPs of forward and backward per token: 6 per active matmul weight, and causal attention (see `qwen3`)."""
    _, active = count_params(size)
    d = dimensions(size)
    return 6 * (active - d["V"] * d["D"]) + 3 * size.num_layers * (d["Q"] + d["O"]) * seq_len


def titan_spec(name: str, size: DeepSeekV3Size, parallelize_fn: Callable[..., Any] | None = None) -> Any:
    """A torchtitan `ModelSpec` of fresh config objects, through torchtitan's own builders."""
    from trnt import device

    device.ensure()
    import torchtitan.models.deepseek_v3 as titan
    from torchtitan.models.common import ComplexRoPE

    rope = ComplexRoPE.Config(
        dim=size.qk_rope_head_dim,
        max_seq_len=size.max_seq_len,
        theta=size.rope_theta,
        scaling="none" if size.rope_factor == 1 else "yarn",
        rope_factor=size.rope_factor,
        beta_fast=size.rope_beta_fast,
        beta_slow=size.rope_beta_slow,
        original_seq_len=size.rope_original_length,
    )
    grouped = size.n_group > 1
    layers = titan._build_dsv3_layers(
        n_layers=size.num_layers,
        n_dense_layers=size.first_dense,
        dim=size.hidden_size,
        n_heads=size.num_heads,
        q_lora_rank=size.q_lora_rank,
        kv_lora_rank=size.kv_lora_rank,
        qk_nope_head_dim=size.qk_nope_head_dim,
        qk_rope_head_dim=size.qk_rope_head_dim,
        v_head_dim=size.v_head_dim,
        mscale=size.rope_mscale,
        dense_hidden_dim=size.intermediate_size,
        moe_hidden_dim=size.moe_intermediate_size,
        num_experts=size.num_experts,
        num_shared_experts=size.num_shared_experts,
        router_top_k=size.top_k,
        router_score_func="sigmoid",
        router_num_expert_groups=size.n_group if grouped else None,
        router_num_limited_groups=size.topk_group if grouped else None,
        router_route_scale=size.route_scale,
        router_route_norm=size.norm_topk,
        attn_backend="varlen",
        moe_comm_backend="standard",
        non_blocking_capacity_factor=None,
        rope=rope,
    )
    model = titan.DeepSeekV3Model.Config(
        dim=size.hidden_size, vocab_size=size.vocab_size, layers=layers, **shared.ends(titan, size)
    )
    spec = shared.spec(
        "deepseek_v3",
        name,
        size,
        model,
        parallelize_fn or titan.parallelize_deepseekv3,
        titan.DeepSeekV3StateDictAdapter,
    )
    for layer in layers:
        layer.attention.q_norm.eps = layer.attention.kv_norm.eps = LATENT_EPS
    return spec


def hf_config(size: DeepSeekV3Size, **options: Any) -> dict[str, Any]:
    """config.json, see `deepseek_v3_config`."""
    from trnt.models import deepseek_v3_config

    return deepseek_v3_config.hf_config(size, **options)


def size_from_hf_config(config: dict[str, Any]) -> DeepSeekV3Size:
    """The reverse of `hf_config`. Raises TrntError for what this family does not have."""
    from trnt.models import deepseek_v3_config

    return deepseek_v3_config.size_from_hf_config(config)
