"""MXFP4 read as bf16: the format by hand, transformers' own reader, any stretch, and a released folder through."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.checkpoint.conftest import Memory
from tests.test_converting import convert
from trnt.checkpoint.dequantised import dequantised
from trnt.checkpoint.mxfp4 import NUMBERS, Mxfp4
from trnt.errors import TrntError
from trnt.opening import open_checkpoint

SHAPE = (2, 6, 3, 16)  # two experts, six rows of 96 numbers


def packed() -> tuple[torch.Tensor, torch.Tensor]:
    """Every byte and every scale that is a number."""
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(256, SHAPE, generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(255, SHAPE[:-1], generator=generator, dtype=torch.uint8)


def by_hand(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """value = number of the nibble x 2^(scale - 127), one by one, the low nibble first."""
    out = torch.empty(*blocks.shape[:2], blocks.shape[2] * 32, dtype=torch.float64)
    for expert, row, block, byte in torch.cartesian_prod(*map(torch.arange, blocks.shape)).tolist():
        power = 2.0 ** (int(scales[expert, row, block]) - 127)
        for half, nibble in enumerate((blocks[expert, row, block, byte] & 15, blocks[expert, row, block, byte] >> 4)):
            out[expert, row, 32 * block + 2 * byte + half] = NUMBERS[int(nibble)] * power
    return out


def test_the_format_by_hand_and_any_stretch() -> None:
    blocks, scales = packed()
    source = Mxfp4(Memory("hf", {"w_blocks": blocks, "w_scales": scales, "n": torch.ones(3)}))
    assert source.problems() == []
    assert {name: (info.dtype, info.shape) for name, info in source.tensors.items()} == {
        "w": ("BF16", (2, 6, 96)),
        "n": ("F32", (3,)),
    }
    expected = by_hand(blocks, scales)
    got = source.tensor("w")
    assert torch.equal(got.double(), expected)  # exact: bf16 has two bits of mantissa to spare
    flat = got.view(-1)
    for first in range(0, 1152, 101):
        for count in (1, 31, 64, 1152 - first):
            count = min(count, 1152 - first)
            out = bytearray(2 * count)
            source.read("w", first, memoryview(out))
            assert torch.equal(torch.frombuffer(out, dtype=torch.bfloat16), flat[first : first + count])
    assert torch.equal(source.tensor("n"), torch.ones(3))


def test_transformers_unpacks_the_same_bits() -> None:
    blocks, scales = packed()
    scales = scales.clamp(min=2)  # below, its bf16 powers of two are flushed
    got = Mxfp4(Memory("hf", {"w_blocks": blocks, "w_scales": scales})).tensor("w")
    theirs = convert_moe_packed_tensors(blocks, scales)  # [E, in, out]
    assert torch.equal(got.transpose(1, 2).contiguous().view(torch.int16), theirs.contiguous().view(torch.int16))


def test_a_scale_of_255_is_nan() -> None:
    blocks = torch.full((1, 1, 1, 16), 0x22, dtype=torch.uint8)
    source = Mxfp4(Memory("hf", {"w_blocks": blocks, "w_scales": torch.full((1, 1, 1), 255, dtype=torch.uint8)}))
    assert source.tensor("w").isnan().all()


@pytest.mark.parametrize(
    ("held", "word"),
    [
        ({"w_blocks": torch.zeros(2, 3, 4, 16, dtype=torch.uint8)}, "w_blocks has no _scales"),
        ({"w_blocks": torch.zeros(2, 3, 4, 8, dtype=torch.uint8)}, r"\[2, 3, 4, 8\], not U8 \[E, out, in / 32, 16\]"),
        ({"w_blocks": torch.zeros(2, 3, 4, 16).bfloat16()}, "BF16"),
        (
            {
                "w_blocks": torch.zeros(2, 3, 4, 16, dtype=torch.uint8),
                "w_scales": torch.zeros(2, 3, 5, dtype=torch.uint8),
            },
            r"w_scales is U8 \[2, 3, 5\], not U8 \[2, 3, 4\]",
        ),
    ],
)
def test_what_is_wrong_is_named(held: dict[str, torch.Tensor], word: str) -> None:
    with pytest.raises(TrntError, match=word):
        dequantised(Memory("hf", held), {"quantization_config": {"quant_method": "mxfp4"}})


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(blocks, scales) of [E, out, in]: the nearest number at the smallest power of two that holds the block."""
    groups = weight.float().unflatten(-1, (-1, 32))
    exponent = (groups.abs().amax(-1).clamp(min=1e-30) / 6).log2().ceil()
    scaled = groups / torch.exp2(exponent)[..., None]
    nibbles = (scaled[..., None] - torch.tensor(NUMBERS[:8] + NUMBERS[9:])).abs().argmin(-1)
    nibbles = torch.where(nibbles > 7, nibbles + 1, nibbles).to(torch.uint8)  # -0 is never the nearest first
    return nibbles[..., ::2] | nibbles[..., 1::2] << 4, (exponent + 127).to(torch.uint8)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A tiny GPT-OSS as it is released: experts in MXFP4, the rest bf16; hidden and expert width differ."""
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 331, "max_position_embeddings": 256}
    shape |= {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt_oss", **shape), dtype=torch.bfloat16)
    folder = tmp_path / "released"
    model.save_pretrained(folder)
    out = {}
    for name, value in load_file(folder / "model.safetensors").items():
        if name.endswith("_proj") and "experts" in name:
            out[f"{name}_blocks"], out[f"{name}_scales"] = quantised(value.transpose(1, 2))
        else:
            out[name] = value
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def unpacked(folder: Path) -> dict[str, torch.Tensor]:
    """What transformers reads of it: bf16."""
    options = {"dtype": torch.bfloat16, "quantization_config": Mxfp4Config(dequantize=True)}
    return dict(AutoModelForCausalLM.from_pretrained(folder, **options).state_dict())


def test_a_released_folder_is_what_transformers_makes_of_it(released: Path, tmp_path: Path) -> None:
    opened = open_checkpoint(str(released))
    assert "4 mxfp4 weights are read as bf16 (one scale for each 32)" in opened.notes
    convert(released, tmp_path / "dcp", verify="full")
    convert(tmp_path / "dcp", tmp_path / "back", verify="full")
    convert(released, tmp_path / "cast", to="hf", verify="full")
    expected = unpacked(released)
    for name in ("back", "cast"):
        got = load_file(tmp_path / name / "model.safetensors")
        assert got.keys() == expected.keys()
        assert [key for key in got if not torch.equal(got[key], expected[key])] == []
        assert "quantization_config" not in json.loads((tmp_path / name / "config.json").read_text())
        _, info = AutoModelForCausalLM.from_pretrained(tmp_path / name, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_a_cut_keeps_the_first_layers_and_experts(released: Path, tmp_path: Path) -> None:
    convert(released, tmp_path / "cut", layers=1, experts=3, verify="full")
    convert(tmp_path / "cut", tmp_path / "hf", verify="full")
    shutil.rmtree(tmp_path / "cut")
    whole = unpacked(released)
    got = load_file(tmp_path / "hf" / "model.safetensors")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert torch.equal(got[name], whole[name][:3])
    assert not any(".layers.1." in key for key in got)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "hf").config.layer_types == ["sliding_attention"]


def test_packed_weights_stay_packed_when_asked(released: Path, tmp_path: Path) -> None:
    convert(released, tmp_path / "same", to="hf", dequantize=False, verify="full")
    held, got = (load_file(folder / "model.safetensors") for folder in (released, tmp_path / "same"))
    assert got.keys() == held.keys()
    assert [name for name in got if not torch.equal(got[name], held[name])] == []
    config = json.loads((tmp_path / "same" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "mxfp4"
    report = convert(released, tmp_path / "cut", to="hf", dequantize=False, layers=1, experts=3, verify="full")
    assert "U8" not in str(report["left_out"])
    cut = load_file(tmp_path / "cut" / "model.safetensors")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    for end in ("_blocks", "_scales"):
        assert torch.equal(cut[name + end], held[name + end][:3])
    assert unpacked(tmp_path / "cut")[name].shape[0] == 3
    for wrong, word in (({"to": "dcp"}, "for training"), ({"to": "hf", "dtype": "float32"}, "keeps them packed")):
        with pytest.raises(TrntError, match=word):
            convert(released, tmp_path / "no", dequantize=False, **wrong)
