"""`trnt verify`: is this checkpoint whole, finite, and the same as that one?"""

from __future__ import annotations

from typing import Annotated

import typer

from trnt import console, errors


def command(
    path: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face folder, a Hub id, a DCP folder, a run of trnt or one of its steps", metavar="PATH"
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option("--against", help="Another checkpoint of the same model, in either form", metavar="OTHER"),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", help="A config.json for a DCP folder that has none", metavar="PATH")
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Only what is wrong, and the last line")] = False,
    json_: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout")] = False,
) -> None:
    """Read a checkpoint through: files and names, checksums where trnt left some, NaN and infinite values, sums.

    With --against, every value is compared with another checkpoint's through the model's table of names, whichever
    form each is in; a smaller model is compared with the first layers and experts of a larger one. Exit code 1 when
    anything differs, is not finite or does not match its checksum.

    Examples:
      trnt verify models/notes
      trnt verify checkpoints/qwen3-0.6b --against models/Qwen3-0.6B
      trnt verify runs/notes/checkpoint/step-500 --brief
    """
    from trnt import verifying
    from trnt.checkpoint import verify

    report = verifying.verify_paths(path, against, config=config)
    rows = report.pop("rows")
    if json_:
        console.result_json({**report, "tensors": verify.as_json(rows)})
    else:
        lines = [] if brief else [verify.table(rows)]
        lines += [f"wrong: {problem}" for problem in report["problems"]]
        sums = f", {report['checksums']} checksums right" if report["checksums"] and report["ok"] else ""
        dtypes = " (in different dtypes: compared in the narrower)" if verify.unlike_dtype(rows) else ""
        what = f"the same as {against}{dtypes}" if against else "whole and finite"
        said = f"{what}{sums}" if report["ok"] else "NOT RIGHT"
        lines.append(f"{path}: {report['model'] or 'unknown model'}, {len(rows)} tensors, {said}")
        console.result("\n".join(lines))
    if not report["ok"]:
        raise typer.Exit(errors.FAILED)
