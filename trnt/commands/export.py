"""`trnt export`: a run's checkpoint as a folder the world can load."""

from __future__ import annotations

from typing import Annotated

import typer

from trnt import console

FORMATS = ("hf", "dcp")


def command(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run folder or a step folder  [default: the newest run under --runs-dir]", metavar="[RUN]"
        ),
    ] = None,
    destination: Annotated[
        str | None, typer.Argument(help="Where to write  [default: RUN/hf or RUN/dcp]", metavar="[DST]")
    ] = None,
    to: Annotated[
        str, typer.Option("--to", help="hf (Hugging Face) or dcp (torch DCP, the model alone)", metavar="FORMAT")
    ] = "hf",
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            help="float32, bfloat16 or float16  [default: as in the run]",
            rich_help_panel="Output",
            metavar="DTYPE",
        ),
    ] = None,
    shard_size: Annotated[
        str,
        typer.Option("--shard-size", help="The most of a file's tensors", rich_help_panel="Output", metavar="SIZE"),
    ] = "5GB",
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="Compare the folder's keys with AutoModelForCausalLM's, without weights",
            rich_help_panel="Output",
        ),
    ] = True,
    runs_dir: Annotated[
        str, typer.Option("--runs-dir", help="Where to look for the newest run", rich_help_panel="Input", metavar="DIR")
    ] = "runs",
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace DST; it is kept until the new one is whole", rich_help_panel="Output"),
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="The result as JSON on stdout", rich_help_panel="Output")
    ] = False,
) -> None:
    """Write a trained model as a Hugging Face folder: weights, config, tokenizer, model card; or as torch DCP.

    The folder loads with AutoModelForCausalLM.from_pretrained, with no missing or unexpected key, and gives the
    trained model's logits.

    Examples:
      trnt export --to hf
      trnt export runs/notes models/notes
      trnt export runs/notes/checkpoint/step-500 models/notes-500 --dtype bfloat16 --shard-size 2GB
    """
    from trnt.errors import unknown
    from trnt.option_checks import one_of, size_in_bytes

    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    if dtype is not None:
        one_of("float32", "bfloat16", "float16")("dtype", dtype)
    shard_bytes = size_in_bytes("shard_size", shard_size)
    from trnt.exporting import export_run

    report = export_run(
        run, destination, runs_dir=runs_dir, dtype=dtype, force=force, to=to, shard_bytes=shard_bytes, check=check
    )
    if json_:
        console.result_json(report)
        return
    console.result(
        f"{report['step_folder']} -> {report['folder']}\n"
        f"{report['tensors']} tensors, {console.human_bytes(report['bytes'])}, {report['dtype']}"
        + (f"; loads as {report['architecture']} with no missing or unexpected key" if report["checked"] else "")
    )
