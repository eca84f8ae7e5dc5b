"""The options of `trnt train`, as one table: flag, environment variable, recipe key, default, check and help.

`seq_len` is the flag `--seq-len`, the variable `TRNT_SEQ_LEN` and the recipe key `seq_len`. An option with a `titan`
key is another name for that torchtitan option: `--seq-len 512` and `--training.seq_len 512` are the same thing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trnt.errors import UsageError

Check = Callable[[str, Any], Any]


def flag_of(name: str) -> str:
    """`seq_len` -> `--seq-len`; dotted names keep their underscores, as torchtitan writes them."""
    return f"--{name}" if "." in name else f"--{name.replace('_', '-')}"


def whole(least: int, *, also: int | None = None) -> Check:
    """A whole number of at least `least` (or exactly `also`)."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, str):
            try:
                value = int(value)
            except ValueError:
                raise UsageError(
                    f"{flag_of(name)} must be a whole number, got '{value}'", f"for example {flag_of(name)} 8"
                ) from None
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"{flag_of(name)} must be a whole number, got {value!r}", f"for example {flag_of(name)} 8")
        if value < least and value != also:
            extra = "" if also is None else f" (or {also})"
            raise UsageError(
                f"{flag_of(name)} must be at least {least}{extra}, got {value}",
                f"use {flag_of(name)} {max(least, 1)} or more",
            )
        return value

    return check


def positive(name: str, value: Any) -> float:
    """A finite number above zero."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"{flag_of(name)} must be a number, got {value!r}", f"for example {flag_of(name)} 3e-4"
        ) from None
    if not math.isfinite(number) or number <= 0:
        raise UsageError(
            f"{flag_of(name)} must be a finite number above zero, got {value}", f"for example {flag_of(name)} 3e-4"
        )
    return number


def one_of(*choices: str) -> Check:
    """One of a few words."""

    def check(name: str, value: Any) -> str:
        from trnt.errors import unknown

        if value not in choices:
            raise unknown(f"value for {flag_of(name)}", str(value), choices)
        return str(value)

    return check


KERNELS = ("auto", "torch", "nki", "nki-sim")


def kernels_name(name: str, value: Any) -> str:
    """The name of trnt's own kernels, or of those that another package brings (docs/customise.md)."""
    if value in KERNELS:
        return str(value)
    from trnt import plugins

    return one_of(*KERNELS, *plugins.installed("trnt.kernels"))(name, value)


def text(name: str, value: Any) -> str:
    """Any text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{flag_of(name)} must not be empty", f"give {flag_of(name)} a value, or leave it out")
    return value


def switch(name: str, value: Any) -> bool:
    """true or false."""
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() in words:
        return words[str(value).lower()]
    raise UsageError(
        f"{flag_of(name)} must be true or false, got {value!r}", f"use {flag_of(name)} or --no-{name.replace('_', '-')}"
    )


UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def size_in_bytes(name: str, value: Any) -> int:
    """`5GB`, `512MiB` or a number of bytes, at least one."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
    unit = UNITS.get(match.group(2).upper()) if match else None
    count = int(float(match.group(1)) * unit) if match and unit else 0
    if count < 1:
        raise UsageError(f"{flag_of(name)} must be a size, got '{value}'", f"for example {flag_of(name)} 5GB or 512MiB")
    return count


@dataclass(frozen=True)
class Option:
    """One row of the table. `default` None means: decided later (said in the help)."""

    name: str
    kind: type
    default: Any
    check: Check
    panel: str
    help: str
    titan: str | None = None

    @property
    def key(self) -> str:
        """The one name under which all layers meet."""
        return self.titan or self.name


OPTIONS: tuple[Option, ...] = (
    Option("model", str, "qwen3-tiny-moe", text, "Model", "Model name, such as qwen3-tiny-moe or qwen3-30b-a3b"),
    Option("layers", int, None, whole(1), "Model", "Keep only the first N layers"),
    Option("experts", int, None, whole(1), "Model", "Keep only the first N experts of each layer"),
    Option(
        "init_from",
        str,
        None,
        text,
        "Model",
        "Start from weights: a Hugging Face FOLDER or Hub id, a DCP folder, or a run; --model may be left out",
    ),
    Option("revision", str, None, text, "Model", "Branch, tag or commit of a Hub id given to --init-from"),
    Option(
        "moe_balance",
        str,
        "none",
        one_of("none", "bias", "aux"),
        "Model",
        "Keep experts evenly used: none, bias (not kept by a Hugging Face export) or aux (a loss term)",
    ),
    Option(
        "data",
        str,
        None,
        text,
        "Data",
        "Text to train on: FILE, FOLDER or GLOB of .txt or .jsonl  [default: the bundled novels]",
    ),
    Option("text_field", str, "text", text, "Data", "The field of a .jsonl line that holds the text"),
    Option(
        "tokenizer",
        str,
        None,
        text,
        "Data",
        "A Hugging Face tokenizer folder  [default: the bundled one, 4,096 tokens]",
    ),
    Option("shuffle", bool, True, switch, "Data", "Visit the rows in another order each epoch"),
    Option("seq_len", int, 256, whole(1), "Data", "Tokens per row", titan="training.seq_len"),
    Option(
        "batch_size", int, 4, whole(1), "Data", "Rows per process and forward pass", titan="training.local_batch_size"
    ),
    Option(
        "global_batch_size",
        int,
        -1,
        whole(1, also=-1),
        "Data",
        "Rows per optimizer step; more than --batch-size accumulates gradients  [default: one forward pass]",
        titan="training.global_batch_size",
    ),
    Option(
        "steps",
        int,
        100,
        whole(1),
        "Training",
        "Optimizer steps in all, earlier ones of a resumed run included",
        titan="training.steps",
    ),
    Option(
        "lr",
        float,
        None,
        positive,
        "Training",
        "Peak learning rate  [default: 0.001, less for a hidden size above 512]",
    ),
    Option(
        "optimizer",
        str,
        "adamw",
        one_of("adamw", "adafactor", "muon", "sgd"),
        "Training",
        "adamw, adafactor, muon (matrices; the rest by adamw) or sgd (momentum 0.9)",
    ),
    Option(
        "warmup",
        int,
        None,
        whole(0),
        "Training",
        "Steps of rising learning rate  [default: a tenth of --steps]",
        titan="lr_scheduler.warmup_steps",
    ),
    Option("seed", int, 0, whole(0), "Training", "Seed of the first weights and of the data order", titan="debug.seed"),
    Option(
        "device",
        str,
        "auto",
        one_of("auto", "cpu", "neuron", "cuda"),
        "Machine",
        "Where to compute; auto: neuron, else cuda, else cpu",
    ),
    Option(
        "precision",
        str,
        None,
        one_of("fp32", "mixed", "bf16"),
        "Machine",
        "fp32; mixed (fp32 weights, bf16 arithmetic); bf16 (all)  [default: fp32 on cpu, mixed elsewhere]",
    ),
    Option(
        "compile", str, "none", one_of("none", "inductor", "neuron"), "Machine", "Compile each block with torch.compile"
    ),
    Option(
        "kernels",
        str,
        "auto",
        kernels_name,
        "Machine",
        "What computes routing and experts: auto (nki on Neuron, else torch), or nki-sim: NKI's source on CPU",
    ),
    Option(
        "memory",
        str,
        "auto",
        one_of("auto", "strict", "off"),
        "Memory",
        "When the run does not fit: auto chooses what does and says so, strict refuses, off tries",
    ),
    Option(
        "optimizer_states",
        str,
        None,
        one_of("fp32", "bf16", "8bit"),
        "Memory",
        "What adamw keeps its moments in  [default: fp32, less when memory is short]",
    ),
    Option(
        "gradient_dtype",
        str,
        None,
        one_of("fp32", "bf16"),
        "Memory",
        "What one CPU process keeps gradients in  [default: fp32, bf16 when memory is short]",
    ),
    Option(
        "recompute",
        str,
        None,
        one_of("none", "full"),
        "Memory",
        "full: run each layer's forward again in its backward  [default: none, full when memory is short]",
    ),
    Option(
        "out", str, None, text, "Output", "The run's folder  [default: a new one under --runs-dir]", titan="dump_folder"
    ),
    Option("runs_dir", str, "runs", text, "Output", "Where new runs are made"),
    Option(
        "resume",
        str,
        "auto",
        text,
        "Output",
        "auto (go on if --out holds this run), never, or a run or step folder to start from",
    ),
    Option(
        "save_every",
        int,
        500,
        whole(1),
        "Output",
        "Steps between checkpoints; the last step is always saved",
        titan="checkpoint.interval",
    ),
    Option("force", bool, False, switch, "Output", "Replace another run that --out holds"),
)

BY_NAME = {option.name: option for option in OPTIONS}
ALIASES = {option.name: option.titan for option in OPTIONS if option.titan}
BY_KEY = {option.key: option for option in OPTIONS}
