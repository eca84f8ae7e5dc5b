"""Shared fixtures: a private cache and config folder, a small corpus, and a run made once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# The workers of the suite share the cores: threads that wait for each other spinning take them from one another, a
# fifth of the time of several hundred seconds of tests on two cores. Read when torch is loaded; processes inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from trnt import device

device.ensure("cpu")  # before any test module imports torchtitan, which copies its device type at import


@pytest.fixture(scope="session", autouse=True)
def private_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the user's own cache or config, and no TRNT_* variable leaks in."""
    for name in [key for key in os.environ if key.startswith("TRNT_")]:
        del os.environ[name]
    os.environ["TRNT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
    os.environ["HF_HUB_OFFLINE"] = "1"


WORDS = "the a cat dog tree river house small old quick sees finds loves builds near under with and but then".split()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 24 short documents of English-like words, the same in every session."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    for number in range(24):
        sentences = [" ".join(rng.choices(WORDS, k=rng.randint(4, 12))).capitalize() for _ in range(rng.randint(2, 14))]
        (folder / f"doc{number:02d}.txt").write_text(". ".join(sentences) + ".\n")
    return folder


@pytest.fixture(scope="session")
def trnt() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own."""

    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **options.pop("env", {})}
        return subprocess.run(
            [sys.executable, "-m", "trnt", *words],
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
            **options,
        )

    return run


@pytest.fixture
def settings(corpus: Path, tmp_path: Path) -> Callable[..., Any]:
    """Settings of a very small training: qwen3-tiny, one layer, 32 tokens, batch 2."""
    from trnt import config

    def make(**given: Any) -> Any:
        arguments = given.pop("arguments", ())
        small = {"model": "qwen3-tiny", "layers": 1, "data": str(corpus), "seq_len": 32, "batch_size": 2, "steps": 3}
        small |= {"out": str(tmp_path / "run"), "device": "cpu", "warmup": 1}
        merged = {k: v for k, v in {**small, **given}.items() if v is not None}
        return config.resolve(merged, arguments=arguments, environment={})

    return make


@pytest.fixture
def tiny_model() -> Callable[..., Any]:
    """A swapped model of a shipped size with its first weights, seed 0."""

    def make(name: str, **options: Any) -> Any:
        import torch

        from trnt.kernels.swap import swap
        from trnt.models import registry

        entry = registry.get(name)
        config = entry.family.titan_spec(name, entry.size).model
        swap(config, **options)
        model = config.build()
        torch.manual_seed(0)
        model.init_states(buffer_device=torch.device("cpu"))
        return model

    return make


@pytest.fixture
def config_of() -> Callable[..., Any]:
    """The torchtitan config of some settings, its run folder made."""

    def make(settings: Any, choice: Any = None) -> Any:
        from trnt import ready, runs
        from trnt.assemble import assemble
        from trnt.parallel.memory import Choice

        start = runs.Start(Path(settings["out"]), resume=False)
        start.out.mkdir(parents=True, exist_ok=True)
        return assemble(ready.prepare(settings), start, choice or Choice())

    return make


@pytest.fixture
def released(tmp_path: Path) -> Callable[..., Path]:
    """A folder as `save_pretrained` writes it: a tiny Qwen3, dense or with experts, and a tokenizer."""

    def make(name: str = "released", *, experts: int = 0, tied: bool = False, **options: Any) -> Path:
        import shutil

        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        from trnt.data.sources import SAMPLE_TOKENIZER

        shape = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
        shape |= {"head_dim": 16, "vocab_size": 4096, "max_position_embeddings": 512, "tie_word_embeddings": tied}
        if experts:
            shape |= {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
            shape |= {"norm_topk_prob": options.pop("norm_topk", True)}
        shape |= {"intermediate_size": 96} | options.pop("config", {})
        dtype = options.pop("dtype", torch.float32)
        config = AutoConfig.for_model("qwen3_moe" if experts else "qwen3", **shape)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        with torch.no_grad():
            for parameter in model.parameters():  # norms of one would hide a mix-up
                parameter.add_(0.05 * torch.randn_like(parameter))
        folder = tmp_path / name
        model.save_pretrained(folder, **options)
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(SAMPLE_TOKENIZER / file, folder / file)
        return folder

    return make
