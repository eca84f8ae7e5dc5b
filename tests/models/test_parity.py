"""Every family computes what transformers computes from the same folder: logits, loss, and gradients of all parameters.

fp32 on both sides, summed in different orders: 1e-4 of the largest value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.checkpoint.conftest import Memory
from tests.test_converting import convert, identical
from trnt.checkpoint import verify
from trnt.checkpoint.start import fill
from trnt.kernels.swap import swap
from trnt.opening import Opened, open_checkpoint

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 331,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32, "rope_theta": 500.0}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
LEAVE_OUT = object()
DEEPSEEK: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
}
DEEPSEEK |= {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1}
DEEPSEEK |= {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16}
DEEPSEEK |= {"num_hidden_layers": 3, "num_key_value_heads": 4, "num_nextn_predict_layers": 0, "head_dim": LEAVE_OUT}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 500.0}
YARN |= {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}
GPT_OSS: dict[str, Any] = {"num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 9, "swiglu_limit": 0.5}
GPT_OSS |= {"num_hidden_layers": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
UNROUNDED = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 500.0}
UNROUNDED |= {"beta_fast": 4.0, "beta_slow": 1.0, "truncate": False}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, scaled rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama, head of its own": ("llama", {"head_dim": 24}),
    "llama, one layer, one key-value head": ("llama", {"num_hidden_layers": 1, "num_key_value_heads": 1}),
    "llama, all key-value heads": ("llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "deepseek_v3": ("deepseek_v3", DEEPSEEK),
    "deepseek_v3, one group, queries of one matrix": (
        "deepseek_v3",
        {**DEEPSEEK, "n_group": 1, "topk_group": 1, "q_lora_rank": None, "norm_topk_prob": False},
    ),
    "deepseek_v3, yarn": ("deepseek_v3", {**DEEPSEEK, "rope_parameters": YARN}),
    "gpt_oss": ("gpt_oss", GPT_OSS),
    "gpt_oss, yarn": ("gpt_oss", {**GPT_OSS, "rope_parameters": UNROUNDED, "swiglu_limit": 7.0}),
    "gpt_oss, square down projection": ("gpt_oss", {**GPT_OSS, "intermediate_size": 64, "num_hidden_layers": 1}),
    "gpt_oss, full attention first, one key-value head": (
        "gpt_oss",
        {**GPT_OSS, "layer_types": ["full_attention", "full_attention", "sliding_attention"], "num_key_value_heads": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3, one key-value head": ("qwen3", {"num_key_value_heads": 1, "head_dim": 24}),
    "qwen3_moe": ("qwen3_moe", MOE),
    "qwen3_moe, not normalised": ("qwen3_moe", {**MOE, "norm_topk_prob": False, "num_experts_per_tok": 3}),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def pair(request: Any, tmp_path: Path) -> tuple[Any, Any, Opened]:
    """(transformers' model, the native one with its weights, the opened folder)."""
    kind, changes = request.param
    torch.manual_seed(0)
    shape = {key: value for key, value in {**SMALL, **changes}.items() if value is not LEAVE_OUT}
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape), dtype=torch.float32)
    with torch.no_grad():
        for parameter in theirs.parameters():  # norms of one would hide a mix-up
            parameter.add_(0.05 * torch.randn_like(parameter))
        for name, buffer in theirs.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(0.1 * torch.randn_like(buffer))
    theirs.save_pretrained(tmp_path / "hf")
    opened = open_checkpoint(str(tmp_path / "hf"))
    config = opened.entry.family.titan_spec(opened.entry.name, opened.entry.size).model
    swap(config)
    ours = config.build()
    ours.init_states(buffer_device=torch.device("cpu"))
    state = ours.state_dict()
    fill(state, opened.source, opened.entry)
    ours.load_state_dict(state)
    return theirs, ours, opened


def run(ours: Any, ids: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Logits of documents packed in each row."""
    where = torch.cat([torch.arange(n) for n in lengths]).repeat(len(ids), 1)
    return ours(ids, positions=where, attention_masks=ours.get_attention_masks(where))


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-4 * b.abs().max())


def test_logits_with_and_without_packed_documents(pair: Any) -> None:
    theirs, ours, _ = pair
    ids = torch.randint(331, (2, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert close(run(ours, ids, [60]), theirs(ids).logits)
        packed = [theirs(part).logits for part in ids.split([25, 1, 34], dim=1)]
        assert close(run(ours, ids, [25, 1, 34]), torch.cat(packed, 1))


def test_loss_and_gradients_of_all_parameters(pair: Any) -> None:
    theirs, ours, opened = pair
    ids = torch.randint(331, (2, 40), generator=torch.Generator().manual_seed(2))
    expected = theirs(ids, labels=ids).loss
    loss = F.cross_entropy(run(ours, ids, [40])[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    loss.backward()
    with torch.no_grad():  # the gradients under the names that a checkpoint gives the weights
        for parameter in ours.parameters():
            parameter.copy_(parameter.grad)
    names = set(opened.source.tensors)
    held = gradients(theirs, names)
    state = {name: value for name, value in ours.state_dict().items() if value.is_floating_point()}
    for name in names - held.keys():  # a buffer has no gradient, and is filled on both sides
        assert name.endswith("e_score_correction_bias")
        held[name] = opened.source.tensor(name)
    rows = verify.compare_models(Memory("hf", held), Memory("dcp", state), opened.entry)
    assert {row.tensor.partition("[")[0] for row in rows} == names
    for row in rows:
        scale = held[row.tensor.partition("[")[0]].abs().max().item()
        assert row.max_difference is not None
        assert row.max_difference <= 1e-4 * scale + 1e-7, row.tensor


def gradients(model: Any, names: set[str]) -> dict[str, torch.Tensor]:
    """transformers' gradients under the names of the files, which hold one tensor per expert."""
    found = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        if name in names:
            found[name] = grad
            continue
        stem = name.rpartition(".")[0]
        for expert, part in enumerate(grad):
            if name.endswith("gate_up_proj"):
                found[f"{stem}.{expert}.gate_proj.weight"], found[f"{stem}.{expert}.up_proj.weight"] = part.chunk(2)
            else:
                found[f"{stem}.{expert}.down_proj.weight"] = part
    return found


def test_a_folder_goes_to_dcp_and_back_without_a_bit_changed(pair: Any, tmp_path: Path) -> None:
    convert(tmp_path / "hf", tmp_path / "dcp", verify="full")
    convert(tmp_path / "dcp", tmp_path / "back", verify="full")
    assert identical(*(load_file(tmp_path / name / "model.safetensors") for name in ("hf", "back")))


def test_the_native_checkpoint_is_torchtitan_s_own(pair: Any, tmp_path: Path) -> None:
    """Its state-dict adapter, which knows nothing of trnt's table, makes the same tensors of the same folder."""
    _, ours, opened = pair
    spec = opened.entry.family.titan_spec(opened.entry.name, opened.entry.size)
    adapter = spec.state_dict_adapter(spec.model, str(tmp_path / "hf"))
    theirs = adapter.from_hf({name: opened.source.tensor(name) for name in opened.source.tensors})
    state = ours.state_dict()
    assert theirs
    for name, value in theirs.items():
        if name == "lm_head.weight" and opened.entry.size.tied:
            continue
        if "inner_experts.mlp" in name:  # GPT-OSS's adapter leaves out the end of these: mlp2_bias is mlp2_bias_ED
            name = next(full for full in state if full.startswith(f"{name}_"))
        assert torch.equal(state[name], value), name
