"""`trnt convert`: a checkpoint in another form."""

from __future__ import annotations

from typing import Annotated

import typer

from trnt import console


def command(
    source: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face folder, a Hub id, a DCP folder, a run of trnt or one of its steps", metavar="SRC"
        ),
    ],
    destination: Annotated[str, typer.Argument(help="The folder to write", metavar="DST")],
    to: Annotated[
        str | None,
        typer.Option("--to", help="dcp or hf  [default: the other of what SRC is]", metavar="FORMAT"),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            help="float32, bfloat16 or float16  [default: as in SRC]",
            rich_help_panel="Output",
            metavar="DTYPE",
        ),
    ] = None,
    dequantize: Annotated[
        bool,
        typer.Option(
            "--dequantize/--no-dequantize",
            help="Write fp8 and MXFP4 weights as bf16, or (--to hf) as they are",
            rich_help_panel="Output",
        ),
    ] = True,
    layers: Annotated[
        int | None,
        typer.Option("--layers", help="Keep only the first N layers", rich_help_panel="Cutting", metavar="N"),
    ] = None,
    experts: Annotated[
        int | None,
        typer.Option(
            "--experts", help="Keep only the first N experts of each layer", rich_help_panel="Cutting", metavar="N"
        ),
    ] = None,
    shard_size: Annotated[
        str,
        typer.Option("--shard-size", help="The most of a file's tensors", rich_help_panel="Output", metavar="SIZE"),
    ] = "5GB",
    memory: Annotated[
        str,
        typer.Option("--memory", help="The most that buffers may take", rich_help_panel="Machine", metavar="SIZE"),
    ] = "512MiB",
    verify: Annotated[
        str,
        typer.Option(
            "--verify",
            help="fast (headers and checksums of what is on the disk), full (every value against SRC too) or off",
            rich_help_panel="Output",
            metavar="HOW",
        ),
    ] = "fast",
    config: Annotated[
        str | None,
        typer.Option(
            "--config", help="A config.json for a DCP folder that has none", rich_help_panel="Input", metavar="PATH"
        ),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option("--revision", help="Branch, tag or commit of a Hub id", rich_help_panel="Input", metavar="REV"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print what it would take; write nothing")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace DST; it is kept until the new one is whole", rich_help_panel="Output"),
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="The result as JSON on stdout", rich_help_panel="Output")
    ] = False,
) -> None:
    """Turn a Hugging Face checkpoint into torch DCP or back, or into the same form with other files, dtype or size.

    A few megabytes are in memory at a time, however large the model. Names, shapes and files are checked before
    anything is written; every tensor's SHA-256 goes into a manifest. A conversion that was killed goes on where it
    stopped when the same command is run again. SRC is never written to, and DST appears when it is whole.

    Examples:
      trnt convert Qwen/Qwen3-0.6B checkpoints/qwen3-0.6b
      trnt convert models/Qwen3-30B-A3B checkpoints/small --layers 4 --experts 64 --dry-run
      trnt convert checkpoints/qwen3-0.6b models/again --verify full
      trnt convert models/big models/big-shards --to hf --shard-size 2GB --dtype bfloat16
    """
    from trnt import option_checks as checks
    from trnt.errors import unknown

    if to not in (None, "dcp", "hf"):
        raise unknown("format", to, ["dcp", "hf"])
    checks.one_of("fast", "full", "off")("verify", verify)
    if dtype is not None:
        checks.one_of("float32", "bfloat16", "float16")("dtype", dtype)
    for name, value in (("layers", layers), ("experts", experts)):
        if value is not None:
            checks.whole(1)(name, value)
    shard_bytes = checks.size_in_bytes("shard_size", shard_size)
    memory_bytes = checks.size_in_bytes("memory", memory)
    from trnt import converting

    wanted = converting.Wanted(
        to=to,
        dtype=dtype,
        layers=layers,
        experts=experts,
        shard_bytes=shard_bytes,
        memory=memory_bytes,
        verify=verify,
        force=force,
        config=config,
        revision=revision,
        dequantize=dequantize,
    )
    planned = converting.plan(source, destination, wanted)
    report = converting.dry_run(planned, wanted) if dry_run else converting.run(planned, wanted)
    if json_:
        console.result_json(report)
    else:
        console.result(converting.render(report))
