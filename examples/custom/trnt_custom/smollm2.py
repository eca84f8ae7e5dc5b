"""SmolLM2: the Llama architecture in sizes of its own. A family is this module; what it leaves alone is Llama's.

Sizes: the published config.json files of HuggingFaceTB/SmolLM2.
"""

from trnt.models.llama3 import (  # noqa: F401  a family has all of these
    DROPPED,
    EXPERT_KEYS,
    FUSED,
    TABLE,
    Llama3Size,
    count_params,
    cut,
    dimensions,
    flops_per_token,
    hf_config,
    row_kinds,
    size_from_hf_config,
    titan_spec,
)

SIZES = {
    "smollm2-135m": Llama3Size(30, 576, 9, 3, 64, 49152, True, 1536, rope_theta=1e5, max_seq_len=8192),
    "smollm2-360m": Llama3Size(32, 960, 15, 5, 64, 49152, True, 2560, rope_theta=1e5, max_seq_len=8192),
}
HUB_NAMES: dict[str, str] = {}  # HuggingFaceTB/SmolLM2-135M-Instruct is found by its own name
MODEL_TYPES: tuple[str, ...] = ()  # a config.json says "llama", which is trnt's own family
