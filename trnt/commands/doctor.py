"""`trnt doctor`: is this machine ready?"""

from __future__ import annotations

from typing import Annotated

import typer

from trnt import console, errors


def command(
    require: Annotated[
        str | None,
        typer.Option("--require", help="Fail unless this device is here: neuron, cuda or cpu", metavar="DEVICE"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the checks; run none")] = False,
    json_: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout")] = False,
) -> None:
    """Check that this machine is ready, or say what to type to fix it.

    Nothing is changed. Exit code 0: ready, warnings allowed; 1: something failed.

    Examples:
      trnt doctor
      trnt doctor --require neuron
      trnt doctor --json
    """
    from trnt.doctor.checks import CHECKS, Machine
    from trnt.doctor.run import examine, ready, render
    from trnt.options import one_of

    if require is not None:
        one_of("neuron", "cuda", "cpu")("require", require)
    if list_:
        rows = [(check.id, check.group, check.title) for check in CHECKS]
        if json_:
            console.result_json({"checks": [dict(zip(("id", "group", "title"), row, strict=True)) for row in rows]})
        else:
            console.result(console.table(("id", "group", "title"), rows))
        return
    results = examine(Machine(require=require))
    ok = ready(results, strict=strict)
    if json_:
        console.result_json({"ok": ok, "checks": [result.to_dict() for result in results]})
    else:
        console.result(render(results, strict=strict))
    if not ok:
        raise typer.Exit(errors.FAILED)
