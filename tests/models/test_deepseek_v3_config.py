"""DeepSeek-V3's config.json reads back, as trnt and as transformers write it; what cannot be done is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from trnt.errors import TrntError
from trnt.models import deepseek_v3
from trnt.models.deepseek_v3_config import hf_config, size_from_hf_config


@pytest.mark.parametrize("name", deepseek_v3.SIZES)
def test_both_ways_and_by_transformers(tmp_path: Path, name: str) -> None:
    size = deepseek_v3.SIZES[name]
    written = hf_config(size, dtype="float32", eos_id=0, pad_id=1)
    assert size_from_hf_config(written) == size
    (tmp_path / "config.json").write_text(json.dumps(written))
    theirs = json.loads(AutoConfig.from_pretrained(tmp_path).to_json_string())
    assert "rope_parameters" in theirs
    assert size_from_hf_config(theirs) == size


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rope_interleave": False}, "rope_interleave"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4, "mscale": 1.0, "mscale_all_dim": 0.7}, "x": 1},
            "mscale and mscale_all_dim",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, "linear rope scaling"),
    ],
)
def test_what_is_refused(change: dict[str, Any], word: str) -> None:
    config = hf_config(deepseek_v3.SIZES["deepseek-v3-tiny"], dtype="float32")
    with pytest.raises(TrntError, match=word):
        size_from_hf_config({**config, **change})
