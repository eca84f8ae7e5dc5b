"""The options of `trnt train`, as one table: flag, environment variable, recipe key, default, check and help.

`seq_len` is the flag `--seq-len`, the variable `TRNT_SEQ_LEN` and the recipe key `seq_len`. An option with a `titan`
key is another name for that torchtitan option: `--seq-len 512` and `--training.seq_len 512` are the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trnt.option_checks import Check, count_or_auto, one_of, positive, switch, text, whole
from trnt.option_checks import flag_of as flag_of

KERNELS = ("auto", "torch", "nki", "nki-sim")


def kernels_name(name: str, value: Any) -> str:
    """The name of trnt's own kernels, or of those that another package brings (docs/customise.md)."""
    if value in KERNELS:
        return str(value)
    from trnt import plugins

    return one_of(*KERNELS, *plugins.installed("trnt.kernels"))(name, value)


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
    also: str | None = None
    """Another name of the same option."""

    @property
    def key(self) -> str:
        """The one name under which all layers meet."""
        return self.titan or self.name


OPTIONS: tuple[Option, ...] = (
    Option(
        "model",
        str,
        "qwen3-tiny-moe",
        text,
        "Model",
        "A name of 'trnt models', or a FOLDER with config.json (--backend transformers: a Hub id too); random weights",
    ),
    Option(
        "backend",
        str,
        "native",
        one_of("native", "transformers"),
        "Model",
        "Whose model code: native (torchtitan with trnt's kernels), or transformers: any AutoModelForCausalLM",
    ),
    Option(
        "attn_implementation",
        str,
        None,
        text,
        "Model",
        "Attention of --backend transformers, such as sdpa or eager  [default: transformers' choice]",
    ),
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
        one_of("none", "selective", "full"),
        "Memory",
        "Activation checkpointing: full runs each layer's forward again in its backward, selective all but attention "
        "and every other product  [default: none, full when memory is short]",
        also="ac",
    ),
    Option(
        "nproc",
        int,
        1,
        count_or_auto,
        "Processes",
        "Processes on this machine; auto: one for each Trainium core or GPU, else 1",
    ),
    Option("nnodes", int, 1, whole(1), "Processes", "Machines; each runs the same command with its --node-rank"),
    Option("node_rank", int, 0, whole(0), "Processes", "This machine's number, from 0"),
    Option(
        "rdzv_endpoint", str, None, text, "Processes", "HOST:PORT of machine 0, where processes of all machines meet"
    ),
    Option(
        "dp_shard",
        int,
        -1,
        count_or_auto,
        "Processes",
        "Processes that share weights and have rows of their own (FSDP); auto: what the others leave  [default: auto]",
        titan="parallelism.data_parallel_shard_degree",
    ),
    Option(
        "fsdp",
        str,
        "fsdp2",
        one_of("fsdp2", "simple"),
        "Processes",
        "How weights are shared: fsdp2 (each layer's parts gathered by hooks), or simple (by tensor operations that a "
        "compiler sees)",
    ),
    Option(
        "dp_replicate",
        int,
        1,
        count_or_auto,
        "Processes",
        "Copies of the weights (DDP; with --dp-shard HSDP)",
        titan="parallelism.data_parallel_replicate_degree",
    ),
    Option(
        "tp",
        int,
        1,
        count_or_auto,
        "Processes",
        "Tensor parallelism: processes that share each layer's heads and widths",
        titan="parallelism.tensor_parallel_degree",
    ),
    Option(
        "sequence_parallel",
        bool,
        True,
        switch,
        "Processes",
        "With --tp: share the tokens between the layers' products too",
        titan="parallelism.enable_sequence_parallel",
    ),
    Option(
        "cp",
        int,
        1,
        count_or_auto,
        "Processes",
        "Context parallelism: processes that share each row's tokens",
        titan="parallelism.context_parallel_degree",
    ),
    Option(
        "ep",
        int,
        1,
        count_or_auto,
        "Processes",
        "Expert parallelism: processes that share the experts, out of those of --dp-shard, --cp and --tp",
        titan="parallelism.expert_parallel_degree",
    ),
    Option(
        "pp",
        int,
        1,
        count_or_auto,
        "Processes",
        "Pipeline parallelism: stages of layers, one row at a time",
        titan="parallelism.pipeline_parallel_degree",
    ),
    Option(
        "pp_schedule",
        str,
        "1F1B",
        text,
        "Processes",
        "Order of the stages' work: 1F1B, GPipe, Interleaved1F1B or LoopedBFS (two stages per process)",
        titan="parallelism.pipeline_parallel_schedule",
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
ALIASES |= {option.also: option.key for option in OPTIONS if option.also}
BY_KEY = {option.key: option for option in OPTIONS}
