"""A CPU training step of trnt beside stock torchtitan 0.3.0 and a plain transformers loop: same model, tokens, AdamW.

    python benchmarks/train_cpu.py [--model moe|dense] [--repeats 3] [--json]

torchtitan's Qwen3 debug models (moe: 316 M parameters, 64 experts, top-8; dense: 32 M), 256 tokens a step, fp32. Every
contender runs in a process of its own, in turn, `--repeats` times; the figure is the median step after the first. The
stock trainer gets only the shims it needs on CPU (its attention has no CPU backward: torch's is put in) and no
activation checkpointing; the transformers loop its fastest experts (`grouped_mm`) and fused AdamW.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEQ_LEN, VOCAB = 256, 2048
STEPS = {"trnt": 12, "trnt --compile inductor": 12, "transformers": 12, "torchtitan": 3}
LR = 1e-3


def size_of(model: str) -> Any:
    """torchtitan's debug model as a size of ours (models/qwen3/__init__.py, `_debugmodel` and `_debugmodel_moe`)."""
    from trnt.models.qwen3 import Qwen3Size

    common = {"num_layers": 8, "hidden_size": 256, "num_heads": 16, "num_kv_heads": 8, "head_dim": 128}
    common |= {"vocab_size": VOCAB, "max_seq_len": 4096}
    if model == "moe":
        return Qwen3Size(**common, tied=False, num_experts=64, top_k=8, moe_intermediate_size=768)
    return Qwen3Size(**common, tied=True, intermediate_size=3072)


def tokens() -> Any:
    """The bundled novels as ids below the debug models' vocabulary, (N,) uint32."""
    from trnt.data.tokens import prepare

    return prepare(None, None).tokens() % VOCAB


def batches(count: int) -> list[tuple[Any, Any]]:
    """(inputs, labels), each (1, SEQ_LEN), the same for every contender."""
    import torch

    ids = torch.from_numpy(tokens()[: count * SEQ_LEN + 1].astype("int64"))
    rows = range(0, count * SEQ_LEN, SEQ_LEN)
    return [(ids[None, i : i + SEQ_LEN], ids[None, i + 1 : i + SEQ_LEN + 1]) for i in rows]


def timed(step: Callable[[Any, Any], Any], count: int) -> dict[str, Any]:
    """Run `count` steps; the losses and every step's seconds."""
    seconds, losses = [], []
    for inputs, labels in batches(count):
        start = time.perf_counter()
        losses.append(float(step(inputs, labels)))
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "losses": losses}


# Which operator's own time belongs to what; the first that is contained wins.
PARTS = {
    "RoutedSwiGLU": "experts",
    "flash_attention": "attention",
    "_fused_adamw_": "optimizer",
    "_linear_pointwise": "other matmul",
    "aten::mm": "other matmul",
    "aten::addmm_": "other matmul",
}


def where_time_goes(step: Callable[[Any, Any], Any], count: int = 3) -> dict[str, float]:
    """Shares of the time of `count` profiled steps. What experts do in threads of their own counts as experts."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as found:
        timed(step, count)
    shares: dict[str, float] = {}
    averages = found.key_averages()
    total = sum(one.self_cpu_time_total for one in averages)
    for one in averages:
        part = next((label for name, label in PARTS.items() if name in one.key), "everything else")
        shares[part] = shares.get(part, 0.0) + one.self_cpu_time_total / total
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def titan_step(trainer: Any) -> Callable[[Any, Any], Any]:
    """A step of a torchtitan trainer on given rows. The loss is read where the trainer itself reports it."""
    import torch

    reported: list[float] = []
    log = trainer.metrics_processor.log

    def keep(step: int, loss: float, *rest: Any, **more: Any) -> None:
        reported.append(float(loss))
        log(step, loss, *rest, **more)

    trainer.metrics_processor.log = keep

    def step(inputs: Any, labels: Any) -> float:
        where = torch.arange(SEQ_LEN)[None]
        trainer.step += 1
        trainer.metrics_processor.ntokens_since_last_log += SEQ_LEN
        trainer.metrics_processor.data_loading_times.append(0.0)
        trainer.train_step(iter([({"input": inputs, "positions": where}, labels)]))
        return reported[-1]

    return step


def run_trnt(model: str, count: int, compiled: str = "none") -> dict[str, Any]:
    from trnt import compiling, config, host_memory, launch, ready, runs
    from trnt.assemble import assemble
    from trnt.models import qwen3
    from trnt.models.registry import ModelEntry
    from trnt.parallel.memory import Choice
    from trnt.trainer import Trainer

    out = tempfile.mkdtemp()
    given = {"seq_len": SEQ_LEN, "batch_size": 1, "steps": 1000, "lr": LR, "warmup": 0, "out": out, "device": "cpu"}
    if compiled != "none":
        given["compile"] = compiled
        compiling.keep()
    checked = ready.prepare(config.resolve(given, environment={}))
    entry = ModelEntry(f"debug-{model}", qwen3, size_of(model))
    checked = dataclasses.replace(checked, beginning=dataclasses.replace(checked.beginning, entry=entry))
    tree = assemble(checked, runs.Start(Path(out), resume=False), Choice())
    result: dict[str, Any] = {}

    def train(self: Any) -> None:
        step = titan_step(self)
        result.update(timed(step, count))
        result["where"] = where_time_goes(step)

    Trainer.train = train  # type: ignore[method-assign]
    launch.run(tree)
    return {**result, "peak_bytes": host_memory.peak_bytes()}


def run_torchtitan(model: str, count: int) -> dict[str, Any]:
    """Stock, with the shims of `trnt.device` and an attention that has a backward on CPU."""
    from trnt import device, host_memory

    device.ensure("cpu")
    from torchtitan.components.optimizer import default_adamw
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.qwen3 import config_registry

    tree = config_registry.qwen3_moe_debug() if model == "moe" else config_registry.qwen3_debugmodel()
    for layer in tree.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
        if layer.moe is not None:
            layer.moe.load_balance_coeff = None
    tree.activation_checkpoint = None
    tree.optimizer = default_adamw(lr=LR)
    tree.parallelism.spmd_backend = "partial_dtensor"
    tree.training.disable_cuda_graphs = True
    tree.training.local_batch_size, tree.training.seq_len, tree.training.steps = 1, SEQ_LEN, 1000
    tree.training.mixed_precision_param = "float32"
    tree.checkpoint.enable = False
    tree.lr_scheduler.warmup_steps = 0
    tree.debug.moe_force_load_balance = False
    tree.debug.seed = 0
    tree.dump_folder = tempfile.mkdtemp()
    from trnt.data.loader import TextDataLoader
    from trnt.data.tokens import prepare

    found = prepare(None, None)
    tree.dataloader = TextDataLoader.Config(token_cache=found.path)
    tree.hf_assets_path = found.tokenizer_path
    from trnt import launch

    result: dict[str, Any] = {}
    type(tree)._owner.train = lambda self: result.update(timed(titan_step(self), count))
    launch.run(tree)
    return {**result, "peak_bytes": host_memory.peak_bytes()}


def run_transformers(model: str, count: int) -> dict[str, Any]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from trnt import host_memory
    from trnt.models import qwen3

    settings = qwen3.hf_config(size_of(model), dtype="float32")
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    config._attn_implementation = "sdpa"
    if model == "moe":
        config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    net = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(inputs: Any, labels: Any) -> Any:
        logits = net(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return {**timed(step, count), "peak_bytes": host_memory.peak_bytes()}


CONTENDERS = {
    "trnt": run_trnt,
    "trnt --compile inductor": functools.partial(run_trnt, compiled="inductor"),
    "transformers": run_transformers,
    "torchtitan": run_torchtitan,
}


def machine() -> dict[str, Any]:
    """What this machine does now: fp32 matmul and copy, in the same minutes as the contenders."""
    import platform

    import torch

    from trnt.device import matmul_flops

    source = torch.ones(1 << 27)
    target = torch.ones(1 << 27)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return {
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "matmul_flops_per_s": matmul_flops(2048),
        "copy_bytes_per_s": 2 * source.nbytes / best,
    }


def alone(name: str, model: str, count: int) -> dict[str, Any]:
    """One contender in a process of its own."""
    words = [sys.executable, __file__, "--contender", name, "--model", model, "--steps", str(count)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["moe", "dense"], default="moe")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--contender", choices=[*CONTENDERS, "machine"], help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.contender:
        found = machine() if given.contender == "machine" else CONTENDERS[given.contender](given.model, given.steps)
        print(json.dumps(found))
        return
    machines = [alone("machine", given.model, 0)]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    for number in range(given.repeats):
        for name in CONTENDERS:
            rounds[name].append(alone(name, given.model, STEPS[name]))
            print(f"round {number + 1}: {name} {rate(rounds[name][-1]):,.1f} tokens/s", file=sys.stderr)
        machines.append(alone("machine", given.model, 0))
    rates = {name: statistics.median(map(rate, found)) for name, found in rounds.items()}
    report = {
        "model": given.model,
        "tokens_per_step": SEQ_LEN,
        "machine": machines,
        "tokens_per_s": rates,
        "rounds": {name: [rate(one) for one in found] for name, found in rounds.items()},
        "peak_bytes": {name: max(one["peak_bytes"] for one in found) for name, found in rounds.items()},
        "last_loss": {name: found[-1]["losses"][-1] for name, found in rounds.items()},
        "where": rounds["trnt"][-1]["where"],
        "ratio": {f"trnt / {name}": rates["trnt"] / rates[name] for name in rates if name != "trnt"},
    }
    if given.json:
        print(json.dumps(report, indent=2))
        return
    for one in report["machine"]:
        print(
            f"{one['cpu']}, {one['threads']} threads, torch {one['torch']}: matmul "
            f"{one['matmul_flops_per_s'] / 1e9:.0f} GFLOP/s, copy {one['copy_bytes_per_s'] / 1e9:.1f} GB/s"
        )
    print(f"{'contender':14} {'tokens/s':>9}  {'peak GiB':>8}  rounds")
    for name, value in rates.items():
        peak = report["peak_bytes"][name] / 2**30
        print(f"{name:14} {value:9.1f}  {peak:8.1f}  {', '.join(f'{one:.1f}' for one in report['rounds'][name])}")
    print("where trnt's step goes: " + ", ".join(f"{name} {share:.0%}" for name, share in report["where"].items()))
    for name, value in report["ratio"].items():
        print(f"{name}: {value:.2f}")


def rate(found: dict[str, Any]) -> float:
    """Tokens per second of the median step after the first."""
    return SEQ_LEN / statistics.median(found["seconds"][1:])


if __name__ == "__main__":
    main()
