"""`trnt models`: which models there are, how large, and what they need."""

from __future__ import annotations

from typing import Annotated

import typer

from trnt import console


def command(
    name: Annotated[
        str | None, typer.Argument(help="Show one model in full: a name of the list, or a Hub id", metavar="[NAME]")
    ] = None,
    family: Annotated[str | None, typer.Option("--family", help="Only this family", metavar="NAME")] = None,
    json_: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout")] = False,
) -> None:
    """List the models that trnt knows: parameters, context length, and the memory that training takes.

    Training memory is weights, gradients and AdamW's moments in fp32, 16 bytes a parameter, before activations;
    'trnt train --dry-run' adds those up for a batch and says what a smaller choice would need. Any can be cut with
    --layers and --experts, and any Hugging Face folder of the same architecture can be used without being in the list.

    Examples:
      trnt models
      trnt models qwen3-30b-a3b
      trnt models meta-llama/Llama-3.1-8B-Instruct --json
    """
    from trnt.models import listing

    if name is not None:
        found = listing.describe(name)
        if json_:
            console.result_json({"model": found})
        else:
            console.result(listing.page(found))
        return
    rows = listing.rows(family)
    if json_:
        console.result_json({"models": rows})
    else:
        console.result(listing.table(rows))
