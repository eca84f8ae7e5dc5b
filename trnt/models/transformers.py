"""Any `AutoModelForCausalLM` as a model: what a config.json says, without a table of names. No torch at import.

The native families compute with trnt's kernels; this one takes whatever transformers has for the architecture, and the
same trainer around it (`trnt train --backend transformers`). Its checkpoints hold transformers' own names behind `hf.`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from trnt.errors import TrntError, UsageError
from trnt.models import shared

MODEL_TYPES: tuple[str, ...] = ()
# config.json's names of the number of experts; those that a file has are changed by --experts.
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")
NAME = "transformers"


@dataclass(frozen=True)
class TransformersSize:
    """The numbers of a config.json that plans need, and the config.json."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool
    intermediate_size: int
    num_experts: int
    top_k: int
    moe_intermediate_size: int
    max_seq_len: int
    config: dict[str, Any] = field(hash=False)
    attn_implementation: str | None = None

    @property
    def attention_values(self) -> int:
        """Values that attention keeps for its backward, per token, about: q and k before and after RoPE and their
        products with its rotations, v, the output, log-sum-exps."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return 5 * q + 5 * kv + 2 * self.head_dim + self.num_heads

    @property
    def extra_ffn_values(self) -> int:
        """Copies of each token for each of its experts, in and out, which trnt's own kernels do not make."""
        return self.top_k * (3 * self.moe_intermediate_size + 4 * self.hidden_size) + 2 * self.hidden_size


def parsed(config: dict[str, Any]) -> Any:
    """transformers' config object. Raises TrntError for an architecture that it does not know."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # trnt has its own
    kind = config.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        raise TrntError(
            f"transformers {transformers.__version__} has no model_type {kind!r}",
            "install a transformers that has it; code of a repository's own is never run",
        )
    if transformers.CONFIG_MAPPING[kind] not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise TrntError(f"{kind} is no language model that AutoModelForCausalLM knows", "use another model")
    return transformers.CONFIG_MAPPING[kind].from_dict(config)


def from_config(config: dict[str, Any], attn_implementation: str | None = None) -> TransformersSize:
    """The numbers of a config.json. Raises TrntError for quantised weights and for what transformers does not know."""
    if config.get("quantization_config"):
        raise TrntError(
            "config.json says that the weights are quantised", "write bf16 weights first: trnt convert FOLDER --to hf"
        )
    text = parsed(config).get_text_config()
    heads = text_of(text, "num_attention_heads")
    if not isinstance(heads, int):
        raise TrntError(
            f"{config['model_type']} has no one number of attention heads: trnt packs documents, which attention alone "
            "keeps apart",
            "use a model with attention in every layer",
        )
    experts = next((int(text_of(text, key)) for key in EXPERT_KEYS if text_of(text, key)), 0)
    width = text_of(text, "intermediate_size") or 4 * text.hidden_size
    return TransformersSize(
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        num_heads=heads,
        num_kv_heads=text_of(text, "num_key_value_heads") or heads,
        head_dim=text_of(text, "head_dim") or text.hidden_size // heads,
        vocab_size=text.vocab_size,
        tied=bool(text_of(text, "tie_word_embeddings")),
        intermediate_size=0 if experts else width,
        num_experts=experts,
        top_k=(text_of(text, "num_experts_per_tok") or 1) if experts else 0,
        moe_intermediate_size=(text_of(text, "moe_intermediate_size") or width) if experts else 0,
        max_seq_len=text_of(text, "max_position_embeddings") or 1 << 20,
        config=config,
        attn_implementation=attn_implementation,
    )


def text_of(config: Any, key: str) -> Any:
    """A field of transformers' config object, None where it has none."""
    return getattr(config, key, None)


def cut(name: str, size: TransformersSize, layers: int | None, experts: int | None) -> TransformersSize:
    """The first layers and experts. Raises UsageError for what cannot be cut."""
    if layers and "num_hidden_layers" not in size.config:
        raise UsageError(f"--layers: {name} names its layers otherwise in config.json", "leave --layers out")
    found: TransformersSize = shared.cut(name, size, layers, experts)
    config = dict(size.config)
    if layers:
        config |= shared.shallower(config, layers)
    if experts:
        config |= {key: experts for key in EXPERT_KEYS if key in config}
    return replace(found, config=config)


@functools.lru_cache(4)
def _counted(config: str) -> tuple[int, int]:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(parsed(json.loads(config)))
    held = dict(model.named_parameters())
    experts = sum(value.numel() for name, value in held.items() if ".experts." in name)
    return sum(value.numel() for value in held.values()), experts


def count_params(size: TransformersSize) -> tuple[int, int]:
    """(all parameters, those that one token meets): of the model that transformers builds, without memory."""
    total, experts = _counted(json.dumps(size.config, sort_keys=True))
    idle = experts * (size.num_experts - size.top_k) // size.num_experts if size.num_experts else 0
    return total, total - idle


def flops_per_token(size: TransformersSize, seq_len: int) -> int:
    """FLOPs of forward and backward per token: 6 per active weight that is multiplied, causal attention everywhere."""
    _, active = count_params(size)
    lookup = 0 if size.tied else size.vocab_size * size.hidden_size
    return 6 * (active - lookup) + 6 * size.num_layers * size.num_heads * size.head_dim * seq_len


def titan_spec(name: str, size: TransformersSize, parallelize_fn: Callable[..., Any] | None = None) -> Any:
    """A torchtitan `ModelSpec` whose model is transformers' (`models/transformers_model.py`)."""
    from trnt import device

    device.ensure()
    from torchtitan.protocols.model_spec import ModelSpec

    from trnt.models.transformers_model import HFModel
    from trnt.parallel.apply import parallelize_transformers

    del parallelize_fn
    return ModelSpec(
        name=NAME,
        flavor=name,
        model=HFModel.Config(hf_config=size.config, attn_implementation=size.attn_implementation),
        parallelize_fn=parallelize_transformers,
        pipelining_fn=None,
        post_optimizer_build_fn=None,
        state_dict_adapter=None,
    )


def hf_config(size: TransformersSize, **options: Any) -> dict[str, Any]:
    """config.json, as it was given."""
    del options
    return dict(size.config)
