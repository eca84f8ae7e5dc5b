"""GPT-OSS's config.json reads back, as trnt and as transformers write it; what cannot be done is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from trnt.errors import TrntError
from trnt.models import gpt_oss
from trnt.models.gpt_oss_config import hf_config, size_from_hf_config

TINY = gpt_oss.SIZES["gpt-oss-tiny"]
MIXED = replace(TINY, layer_types=("full_attention", "full_attention", "sliding_attention", "full_attention"))


@pytest.mark.parametrize("size", [*gpt_oss.SIZES.values(), MIXED], ids=[*gpt_oss.SIZES, "mixed"])
def test_both_ways_and_by_transformers(tmp_path: Path, size: gpt_oss.GptOssSize) -> None:
    written = hf_config(size, dtype="float32", eos_id=0, pad_id=1)
    assert size_from_hf_config(written) == size
    (tmp_path / "config.json").write_text(json.dumps(written))
    theirs = json.loads(AutoConfig.from_pretrained(tmp_path).to_json_string())
    assert "rope_parameters" in theirs
    assert size_from_hf_config(theirs) == size


def test_a_file_that_says_nothing_of_rope_means_what_transformers_takes() -> None:
    written = hf_config(gpt_oss.SIZES["gpt-oss-20b"], dtype="float32")
    del written["rope_scaling"], written["rope_theta"]
    assert size_from_hf_config(written) == gpt_oss.SIZES["gpt-oss-20b"]
    theirs = AutoConfig.for_model("gpt_oss")
    assert theirs.rope_parameters["factor"] == 32.0
    assert not theirs.rope_parameters["truncate"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"attention_bias": False}, "attention_bias"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rounded cut-offs"),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, "linear rope scaling"),
        ({"layer_types": ["sliding_attention"]}, "1 layer_types"),
        ({"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
    ],
)
def test_what_is_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(TrntError, match=word):
        size_from_hf_config({**hf_config(TINY, dtype="float32"), **change})
