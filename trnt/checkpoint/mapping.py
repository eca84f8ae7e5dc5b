"""A family's table of names applied to a size: every tensor on both sides, known before any weight is read.

One list of links is read in both directions, so that a mapping cannot be right one way and wrong the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trnt.errors import TrntError
from trnt.models.registry import ModelEntry

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Link:
    """One Hugging Face tensor and where it lies in the native checkpoint.

    expert: None for a whole tensor, else the slice along dimension 0. on_hub False: a tied head, which the Hub's files
    leave out because it is the embedding.
    """

    hf: str
    native: str
    shape: tuple[int, ...]
    expert: int | None = None
    on_hub: bool = True


def links(entry: ModelEntry) -> list[Link]:
    """Every tensor of a model, in the order of the table, layer by layer."""
    family, size = entry.family, entry.size
    letters = family.dimensions(size)
    kind = "moe" if size.num_experts else "dense"
    rows = [row for row in family.TABLE if row.when in ("always", kind)]
    before = [row for row in rows if "{layer}" not in row.hf]
    inside = [row for row in rows if "{layer}" in row.hf]
    found: list[Link] = []
    for row, layer in [
        *((row, None) for row in before[:1]),
        *((row, layer) for layer in range(size.num_layers) for row in inside),
        *((row, None) for row in before[1:]),
    ]:
        shape = tuple(letters[letter] for letter in row.shape)
        experts: Iterable[int | None] = range(size.num_experts) if row.transform == "experts" else (None,)
        on_hub = not (row.transform == "tied" and size.tied)
        for expert in experts:
            hf, native = (text.format(layer=layer, expert=expert) for text in (row.hf, row.native))
            found.append(Link(hf, native, shape, expert, on_hub))
    return found


def native_shapes(entry: ModelEntry) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the native checkpoint's model tensors."""
    shapes: dict[str, tuple[int, ...]] = {}
    for link in links(entry):
        shapes[link.native] = link.shape if link.expert is None else (entry.size.num_experts, *link.shape)
    return shapes


def hf_shapes(entry: ModelEntry) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the Hugging Face tensors."""
    return {link.hf: link.shape for link in links(entry) if link.on_hub}


def dropped_names(entry: ModelEntry) -> list[str]:
    """Native tensors without a place on the Hub that may be there."""
    return [name.format(layer=layer) for name in entry.family.DROPPED for layer in range(entry.size.num_layers)]


def check(
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    *,
    where: str,
    extra_ok: Iterable[str] = (),
) -> None:
    """Compare names and shapes. Raises TrntError that lists everything missing, unexpected and misshapen at once."""
    problems = [f"missing {name}" for name in expected if name not in found]
    problems += [f"unexpected {name}" for name in found if name not in expected and name not in set(extra_ok)]
    problems += [
        f"{name} is {list(found[name])}, not {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    if problems:
        raise TrntError(
            f"{where} does not hold this model: {'; '.join(problems)}",
            "check --model, --layers and --experts against the run that made it",
        )


def to_hf(entry: ModelEntry, read: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of every Hugging Face tensor, one native tensor in memory at a time.

    read(native name) -> tensor. Raises TrntError when a tied head differs from the embedding.
    """
    import torch

    held: tuple[str, Any] = ("", None)
    embedding = None
    for link in links(entry):
        if held[0] != link.native:
            held = (link.native, read(link.native))
        tensor = held[1] if link.expert is None else held[1][link.expert]
        if link.native == "tok_embeddings.weight" and entry.size.tied:
            embedding = tensor
        if not link.on_hub:
            if embedding is None or not torch.equal(tensor, embedding):
                raise TrntError(
                    f"{link.native} differs from the embedding it is tied to", "export an untied model instead"
                )
            continue
        yield link.hf, tensor


def to_native(entry: ModelEntry, read: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of every native tensor, from read(Hugging Face name) -> tensor; the reverse of `to_hf`."""
    import torch

    embedding_hf = next(link.hf for link in links(entry) if link.native == "tok_embeddings.weight")
    stack: list[Any] = []
    for link in links(entry):
        tensor = read(link.hf if link.on_hub else embedding_hf)
        if link.expert is None:
            yield link.native, tensor
            continue
        stack.append(tensor)
        if len(stack) == entry.size.num_experts:
            yield link.native, torch.stack(stack)
            stack = []
