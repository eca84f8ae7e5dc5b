"""torchtitan's MoE layer with the NKI modules in its seams, and a whole run beside the same run by torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trnt import device

device.ensure()

from trnt.kernels.nki import modules
from trnt.kernels.swap import swap
from trnt.models import registry


def layers(kernels: str, balance: str = "none", model: str = "qwen3-tiny-moe") -> Any:
    """A small MoE layer of torchtitan with the kernels swapped in, the same weights each time."""
    entry = registry.get(model).cut(1, None)
    spec = entry.family.titan_spec(entry.name, entry.size, parallelize_fn=None)
    swap(spec.model, moe_balance=balance, kernels=kernels)
    layer = spec.model.layers[0].moe.build()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
        layer._init_self_buffers(buffer_device=torch.device("cpu"))
    return layer


@pytest.mark.parametrize("model", ["qwen3-tiny-moe", "gpt-oss-tiny"])
@pytest.mark.parametrize("balance", ["none", "bias", "aux"])
def test_a_layer_computes_what_torch_computes(balance: str, model: str) -> None:
    torch_layer, nki_layer = layers("torch", balance, model), layers("nki-sim", balance, model)
    assert isinstance(nki_layer.router, modules.NkiRouter)
    assert isinstance(nki_layer.routed_experts, modules.NkiRoutedExperts)
    x = torch.randn(1, 24, torch_layer.router.gate.weight.shape[1], generator=torch.Generator().manual_seed(1))
    out = []
    for layer in (torch_layer, nki_layer):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        grads = torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])
        out.append((y, grads, layer.tokens_per_expert_E))
    (y, grads, counts), (y_nki, grads_nki, counts_nki) = out
    assert torch.equal(counts, counts_nki)
    assert torch.allclose(y_nki, y, rtol=1e-4, atol=1e-6)
    for a, b in zip(grads_nki, grads, strict=True):
        # fp32 sums of a few hundred terms in another order.
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5 * float(b.abs().max()))


@pytest.mark.parametrize("model", ["qwen3-tiny-moe", "gpt-oss-tiny"])
def test_experts_alone_take_rows_that_are_sorted(model: str) -> None:
    layer = layers("nki-sim", model=model).routed_experts.inner_experts
    other = layers("torch", model=model).routed_experts.inner_experts
    counts = torch.zeros(layer.num_experts, dtype=torch.int64)
    counts[0], counts[2] = 5, 9
    x = torch.randn(14, registry.get(model).size.hidden_size, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(layer(x, counts), other(x, counts), rtol=1e-4, atol=1e-6)


def losses(folder: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows}


def train(out: Path, *words: str) -> str:
    command = [sys.executable, "-m", "trnt", "train", "--model", "qwen3-tiny-moe", "--layers", "1", "--batch-size", "1"]
    words = ("--seq-len", "32", "--seed", "1", "--out", str(out), *words)
    done = subprocess.run([*command, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
def test_ten_steps_by_torch_and_by_the_interpreted_kernels(tmp_path: Path) -> None:
    said = train(tmp_path / "torch", "--steps", "10", "--kernels", "torch")
    assert "kernels: torch on cpu, as asked" in said
    said = train(tmp_path / "nki", "--steps", "10", "--kernels", "nki-sim", "--save-every", "5")
    assert "interpreted" in said
    expected, got = losses(tmp_path / "torch"), losses(tmp_path / "nki")
    assert list(expected) == list(range(1, 11))
    for step, loss in expected.items():
        assert got[step] == pytest.approx(loss, rel=1e-4), step
    start = str(tmp_path / "nki" / "checkpoint" / "step-5")
    train(tmp_path / "resumed", "--steps", "10", "--kernels", "nki-sim", "--resume", start)
    resumed = losses(tmp_path / "resumed")
    assert resumed == {step: loss for step, loss in got.items() if step > 5}


@pytest.mark.slow
def test_three_steps_in_bf16(tmp_path: Path) -> None:
    """bf16 rounds each activation by 2^-9; the mean loss of 32 tokens, about 8, differs by far less than 2^-7 of it."""
    for kernels in ("torch", "nki-sim"):
        train(tmp_path / kernels, "--steps", "3", "--kernels", kernels, "--precision", "bf16")
    expected, got = losses(tmp_path / "torch"), losses(tmp_path / "nki-sim")
    for step, loss in expected.items():
        assert got[step] == pytest.approx(loss, rel=2**-7), step
