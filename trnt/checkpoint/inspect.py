"""Whether a folder holds the model that its config describes: found from names, shapes and dtypes, before any work."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trnt import console
from trnt.checkpoint import mapping
from trnt.checkpoint.dcp import DcpSource
from trnt.checkpoint.dtypes import FLOATS, size_of
from trnt.checkpoint.source import PIECE, Info, Source, pieces, refuse
from trnt.errors import TrntError
from trnt.models.registry import ModelEntry

# Buffers that old files hold and no model needs.
COMPUTED = re.compile(r".*rotary_emb\.inv_freq")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
FIX = "check that config.json (or --model, --layers, --experts) belongs to these weights"


def model_tensors(source: Source) -> dict[str, Info]:
    """The tensors of a folder that are a model's."""
    names: Iterable[str] = source.model_names() if isinstance(source, DcpSource) else source.tensors
    return {name: source.tensors[name] for name in names if not COMPUTED.fullmatch(name)}


def check_source(source: Source, entry: ModelEntry) -> list[str]:
    """Compare a folder with its model. Returns notes for the user, of what is left out.

    Raises TrntError that lists every missing, unexpected, misshapen and wrongly typed tensor at once, or says that a
    tied head differs from its embedding.
    """
    found = model_tensors(source)
    expected = mapping.file_shapes(entry, source.kind, found)
    extra = set(mapping.dropped_names(entry)) if source.kind == "dcp" else set()
    notes = []
    if source.kind == "hf" and entry.size.tied and HEAD in found and HEAD not in expected:
        extra.add(HEAD)
        notes.append(f"{HEAD} is the embedding, as tie_word_embeddings says, and is left out")

    def named(name: str) -> str:
        file = source.file_of(name)
        return f"{file}: {name}" if file else name

    problems = [f"missing {name}" for name in expected if name not in found]
    problems += [f"unexpected {named(name)}" for name in found if name not in expected and name not in extra]
    problems += [
        f"{named(name)} is {list(found[name].shape)}, not {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name].shape != tuple(shape)
    ]
    problems += [
        f"{named(name)} is {info.dtype}, no floating-point weight"
        for name, info in found.items()
        if name in expected and info.dtype not in FLOATS
    ]
    refuse(source.path, problems, FIX)
    if HEAD in extra:
        check_tied(source, HEAD, EMBEDDING)
    if source.kind == "dcp" and entry.size.tied:
        check_tied(source, HEAD, "tok_embeddings.weight")
    return notes


def check_tied(source: Source, head: str, embedding: str) -> None:
    """Raise TrntError when a head that is said to be the embedding is not."""
    a, b = source.tensors[head], source.tensors[embedding]
    same = a == b
    if same:
        left, right = bytearray(PIECE), bytearray(PIECE)
        for first, count in pieces(a.numel, PIECE // size_of(a.dtype)):
            length = count * size_of(a.dtype)
            source.read(head, first, memoryview(left)[:length])
            source.read(embedding, first, memoryview(right)[:length])
            if left[:length] != right[:length]:
                same = False
                break
    if not same:
        raise TrntError(
            f"{source.path}: {head} differs from {embedding}, and config.json says that they are tied",
            "set tie_word_embeddings to false in config.json if the head was trained on its own",
        )


def check_one_dtype(source: Source, entry: ModelEntry) -> None:
    """Raise TrntError when the experts of one native tensor come in several dtypes: a stack has one."""
    where = mapping.places(entry, source.kind, source.tensors)
    seen: dict[str, tuple[str, str]] = {}
    problems = []
    for link, (name, _) in where.items():
        dtype = source.tensors[name].dtype
        first = seen.setdefault(link.native, (name, dtype))
        if first[1] != dtype:
            problems.append(f"{name} is {dtype} and {first[0]} is {first[1]}")
    refuse(source.path, problems, "choose one dtype for all with --dtype")


def dropped_bias(source: Source, entry: ModelEntry) -> dict[str, float]:
    """Name -> largest magnitude of the tensors that have no place on the Hub and are not zero."""
    found = {}
    for name in mapping.dropped_names(entry):
        if name in source.tensors:
            largest = float(source.tensor(name).abs().max())
            if largest:
                found[name] = largest
    return found


def warn_not_finite(found: dict[str, int]) -> None:
    """Say which tensors hold NaN or infinite values."""
    if found:
        some = ", ".join(f"{name} ({count})" for name, count in list(found.items())[:10])
        more = f" and {len(found) - 10} more" if len(found) > 10 else ""
        console.warn(f"NaN or infinite values in {some}{more}")
