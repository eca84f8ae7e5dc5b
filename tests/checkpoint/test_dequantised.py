"""Block-scaled fp8 read as bf16: the formula by hand, any stretch, ragged blocks, and a whole folder through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.checkpoint.conftest import Memory
from tests.test_converting import convert
from trnt.checkpoint.dequantised import Dequantised, dequantised
from trnt.errors import TrntError
from trnt.opening import open_checkpoint

BLOCK = (3, 4)
CONFIG = {"quantization_config": {"quant_method": "fp8", "weight_block_size": list(BLOCK)}, "x": 1}


def quantised(weight: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(fp8, scales), each block scaled so that its largest value is fp8's, 448."""
    rows, columns = weight.shape
    scale = torch.empty(-(-rows // block[0]), -(-columns // block[1]))
    out = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            at = (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
            scale[i, j] = weight[at].float().abs().max().clamp(min=1e-6) / 448
            out[at] = (weight[at].float() / scale[i, j]).to(torch.float8_e4m3fn)
    return out, scale


def by_hand(raw: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """value = fp8 x the scale of its block, one by one."""
    out = torch.empty(raw.shape, dtype=torch.bfloat16)
    for r in range(raw.shape[0]):
        for c in range(raw.shape[1]):
            out[r, c] = raw[r, c].float() * scale[r // block[0], c // block[1]]
    return out


def test_any_stretch_of_ragged_blocks() -> None:
    raw, scale = quantised(torch.randn(8, 10, generator=torch.Generator().manual_seed(0)), BLOCK)
    source = Dequantised(Memory("hf", {"w": raw, "w_scale_inv": scale, "n": torch.ones(3)}), BLOCK)
    assert set(source.tensors) == {"w", "n"}
    assert source.tensors["w"].dtype == "BF16"
    expected = by_hand(raw, scale, BLOCK)
    assert torch.equal(source.tensor("w"), expected)
    assert torch.equal(source.tensor("n"), torch.ones(3))
    flat = expected.view(-1)
    for first in range(0, 80, 7):
        for count in (1, 9, 80 - first):
            count = min(count, 80 - first)
            out = bytearray(2 * count)
            source.read("w", first, memoryview(out))
            assert torch.equal(torch.frombuffer(out, dtype=torch.bfloat16), flat[first : first + count])


def test_torch_s_own_reader_agrees(tmp_path: Path) -> None:
    """`QuantizedHuggingFaceStorageReader`, whose fp8 path is exact."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader

    raw, scale = quantised(torch.randn(200, 300, generator=torch.Generator().manual_seed(1)), (128, 128))
    save_file({"w.weight": raw, "w.weight_scale_inv": scale}, tmp_path / "model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(("w.weight", "w.weight_scale_inv"), "model.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    held = {"w.weight": torch.zeros(200, 300, dtype=torch.bfloat16)}
    reader = QuantizedHuggingFaceStorageReader(str(tmp_path), target_dtype=torch.bfloat16, block_size=128)
    dcp.load(held, storage_reader=reader, no_dist=True)
    memory = Memory("hf", {"w.weight": raw, "w.weight_scale_inv": scale})
    assert torch.equal(Dequantised(memory, (128, 128)).tensor("w.weight"), held["w.weight"])


@pytest.mark.parametrize(
    ("held", "word"),
    [
        ({}, "has no _scale_inv"),
        ({"w_scale_inv": torch.ones(2, 2)}, r"F32 \[2, 2\], not F32 \[3, 3\]"),
        ({"w_scale_inv": torch.ones(3, 3).bfloat16()}, "BF16"),
    ],
)
def test_scales_that_are_missing_or_misshapen(held: dict[str, Any], word: str) -> None:
    raw = torch.zeros(8, 10).to(torch.float8_e4m3fn)
    with pytest.raises(TrntError, match=word):
        dequantised(Memory("hf", {"w": raw, **held}), CONFIG)


def test_other_methods_are_refused_and_no_method_changes_nothing() -> None:
    memory = Memory("hf", {})
    assert dequantised(memory, {"x": 1}) == (memory, {"x": 1}, [])
    with pytest.raises(TrntError, match="awq"):
        dequantised(memory, {"quantization_config": {"quant_method": "awq"}})


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A tiny DeepSeek-V3 as it is released: fp8 in blocks, and a multi-token-prediction layer behind the others."""
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 4, "vocab_size": 331, "max_position_embeddings": 256, "first_k_dense_replace": 1}
    shape |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "n_shared_experts": 1}
    shape |= {"n_group": 2, "topk_group": 1, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12}
    shape |= {"qk_rope_head_dim": 8, "v_head_dim": 16, "num_nextn_predict_layers": 1}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("deepseek_v3", **shape), dtype=torch.bfloat16)
    folder = tmp_path / "released"
    model.save_pretrained(folder)
    held, out = load_file(folder / "model.safetensors"), {}
    for name, value in held.items():
        if value.dim() == 2 and "layers" in name and "mlp.gate." not in name:
            out[name], out[f"{name}_scale_inv"] = quantised(value, (16, 24))
        else:
            out[name] = value
    out |= {f"model.layers.2.{name}.weight": torch.ones(64) for name in ("enorm", "hnorm", "input_layernorm")}
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 24]}
    config["num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_released_folder_is_converted_and_said_so(released: Path, tmp_path: Path) -> None:
    opened = open_checkpoint(str(released))
    assert any("fp8 weights are read as bf16" in note for note in opened.notes)
    assert "3 tensors of the multi-token-prediction layer are left out" in opened.notes
    convert(released, tmp_path / "dcp", verify="full")
    convert(tmp_path / "dcp", tmp_path / "back", verify="full")
    got, held = load_file(tmp_path / "back" / "model.safetensors"), load_file(released / "model.safetensors")
    for name, value in got.items():
        scale = held.get(f"{name}_scale_inv")
        expected = held[name] if scale is None else by_hand(held[name], scale, (16, 24))
        assert torch.equal(value, expected.to(value.dtype)), name
    assert not any(name.startswith("model.layers.2.") or "scale" in name for name in got)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["num_nextn_predict_layers"] == 0
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.dtype == torch.bfloat16


def test_fp8_stays_fp8_when_asked(released: Path, tmp_path: Path) -> None:
    convert(released, tmp_path / "same", to="hf", dequantize=False, verify="full")
    held, got = (load_file(folder / "model.safetensors") for folder in (released, tmp_path / "same"))
    assert got.keys() == {name for name in held if not name.startswith("model.layers.2.")}  # but for the MTP layer
    assert all(torch.equal(got[name].view(torch.uint8), held[name].view(torch.uint8)) for name in got)
    config = json.loads((tmp_path / "same" / "config.json").read_text())
    assert config["quantization_config"]["weight_block_size"] == [16, 24]
