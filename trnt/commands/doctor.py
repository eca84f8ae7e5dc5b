"""`trnt doctor`: is this machine ready?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnt import console, errors


def command(
    require: Annotated[
        str | None,
        typer.Option("--require", help="Fail unless this device is here: neuron, cuda or cpu", metavar="DEVICE"),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only this group or check; repeat for more", metavar="GROUP|ID")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Start neither torch nor device programs, ask no network")
    ] = False,
    nodes: Annotated[int, typer.Option("--nodes", help="Machines of the job; from 2 on EFA is asked for", min=1)] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too")] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write a bundle for a bug report, without names and tokens")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the checks; run none")] = False,
    json_: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout")] = False,
) -> None:
    """Check that this machine is ready, or say what to type to fix it.

    Nothing is changed. Exit code 0: ready, warnings allowed; 1: something failed.

    Examples:
      trnt doctor
      trnt doctor --require neuron
      trnt doctor --fast --only packages
      trnt doctor --report doctor.json
    """
    from trnt.doctor import report as reports
    from trnt.doctor.machine import Machine
    from trnt.doctor.run import CHECKS, chosen, examine, names, ready, render
    from trnt.errors import UsageError, unknown
    from trnt.option_checks import one_of

    if require is not None:
        one_of("neuron", "cuda", "cpu")("require", require)
    for name in only or []:
        if name not in names():
            raise unknown("check", name, names())
    if report is not None and report.exists():
        raise UsageError(f"{report} exists already", "name another file")
    if list_:
        rows = [(check.id, check.group, check.title) for check in CHECKS]
        if json_:
            console.result_json({"checks": [dict(zip(("id", "group", "title"), row, strict=True)) for row in rows]})
        else:
            console.result(console.table(("id", "group", "title"), rows))
        return
    machine = Machine(require=require, nodes=nodes)
    results = examine(machine, chosen(only or [], fast=fast))
    ok = ready(results, strict=strict)
    if report is not None:
        reports.write(machine, results, report)
    if json_:
        console.result_json({"ok": ok, "checks": [result.to_dict() for result in results]})
    else:
        console.result(render(results, strict=strict))
        if report is not None:
            console.note(f"the report is in {report}")
    if not ok:
        raise typer.Exit(errors.FAILED)
