"""`trnt bench`: how fast the kernels are here, and how far from what the machine could do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnt import console, errors


def command(
    cases: Annotated[
        list[str] | None,
        typer.Argument(help="Cases, or what several begin with (experts); all that fit the model where none is named"),
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Whose widths")] = "qwen3-30b-a3b",
    experts: Annotated[
        int | None, typer.Option("--experts", help="Keep this many experts  [default: at most 64]", metavar="N")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", help="Tokens of each case  [default: the case's own]", metavar="N")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="fp32 or bf16  [default: fp32; bf16 to predict]", metavar="NAME")
    ] = None,
    kernels: Annotated[
        str | None,
        typer.Option("--kernels", help="Any of cpu,torch,nki,nki-sim  [default: trnt's fastest]", metavar="LIST"),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or neuron")] = "auto",
    seconds: Annotated[float, typer.Option("--seconds", help="Time for the repeats of each case")] = 1.0,
    predict: Annotated[
        str | None,
        typer.Option("--predict", help="Predict, not measure, the NKI kernels on trn1, trn2 or trn3", metavar="NAME"),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="The cases, and stop")] = False,
    save: Annotated[Path | None, typer.Option("--save", help="Keep the result in a file", metavar="FILE")] = None,
    compare: Annotated[
        Path | None,
        typer.Option("--compare", help="Name what is slower than in a kept result; exit code 1", metavar="FILE"),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the roofline: .png, .svg or .pdf", metavar="FILE")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the files of --save and --plot")] = False,
    json_: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout")] = False,
) -> None:
    """Measure kernels, checkpoints and data at a model's sizes, against a reference and this machine's own limits.

    Every case is checked first: 'correct' shows the largest error. The time is the median of repeated calls after one
    that is not counted. 'bound by' is what limits the case, the machine's products or its memory, each measured beside
    it, and the last column the share of that limit which was reached. --kernels cpu,torch puts trnt's kernels beside
    torch's own; nki-sim interprets the NKI kernels, whose time then says nothing. Exit code 1 when a result is wrong or
    slower than in --compare.

    --predict interprets the NKI kernels, counts their instructions and bytes, and puts them on the engines' timelines
    with documented rates: a prediction of one core, not a measurement, and not run on hardware. It takes minutes at
    large sizes.

    Examples:
      trnt bench
      trnt bench experts --kernels cpu,torch --tokens 1024
      trnt bench --save before.json
      trnt bench --compare before.json --plot roofline.png
      trnt bench experts --predict trn2 --experts 8
    """
    from trnt.benching import names, report

    if list_:
        if json_:
            console.result_json({"cases": names.as_rows()})
        else:
            console.result(report.listing(names.CASES))
        return
    from trnt import benched

    if predict is not None:
        if any(given is not None for given in (kernels, save, compare, plot)) or device != "auto":
            raise errors.UsageError(
                "--predict goes without --kernels, --device, --save, --compare and --plot", "leave them out"
            )
        rows = benched.predict(
            cases or [], model=model, experts=experts, tokens=tokens, dtype=dtype or "bf16", generation=predict
        )
        if json_:
            console.result_json({"predicted": True, "cases": rows})
        else:
            console.result(benched.predicted_text(rows))
        if not all(row["correct"] for row in rows):
            raise typer.Exit(errors.FAILED)
        return
    found = benched.bench(
        cases or [],
        model=model,
        experts=experts,
        tokens=tokens,
        dtype=dtype or "fp32",
        kernels=kernels,
        device=device,
        seconds=seconds,
        save=save,
        compare=compare,
        plot=plot,
        force=force,
    )
    if json_:
        console.result_json(found.as_json())
    else:
        console.result(found.text())
    if not found.good:
        raise typer.Exit(errors.FAILED)
