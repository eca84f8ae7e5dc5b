"""The names of the cases and kernels, and which run unless told otherwise. No torch: help and errors answer at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trnt.errors import TrntError, UsageError, unknown

KERNELS = ("cpu", "torch", "nki", "nki-sim")
DTYPES = ("fp32", "bf16")
WHERE = {"cpu": ("cpu",), "torch": ("cpu", "cuda", "neuron"), "nki-sim": ("cpu",), "nki": ("neuron",)}


@dataclass(frozen=True)
class Named:
    """A case by name: the module that has it, who computes it (the first that runs on a device is its default)."""

    module: str
    kernels: tuple[str, ...]
    about: str
    tokens: int
    experts: bool = False


EXPERTS, DENSE, FILES = (f"trnt.benching.{name}" for name in ("experts", "dense", "files"))
CASES = {
    "experts-forward": Named(
        EXPERTS, ("nki", "cpu", "torch", "nki-sim"), "SwiGLU experts with gather and combine, forward", 512, True
    ),
    "experts-backward": Named(
        EXPERTS,
        ("nki", "cpu", "torch", "nki-sim"),
        "the same, backward: gradients of tokens, scores and weights",
        512,
        True,
    ),
    "route": Named(
        EXPERTS, ("nki", "torch", "nki-sim"), "softmax, the choice of top_k experts, their affinities", 4096, True
    ),
    "attention": Named(DENSE, ("cpu", "torch"), "causal attention inside four packed documents, forward", 2048),
    "attention-backward": Named(DENSE, ("cpu", "torch"), "the same, backward", 2048),
    "loss": Named(DENSE, ("cpu", "torch"), "the head and its cross entropy, forward and backward", 64),
    "rmsnorm": Named(DENSE, ("torch",), "RMSNorm over the hidden size, forward and backward", 4096),
    "checkpoint-write": Named(
        FILES, ("torch",), "torch DCP as a run saves it, down to the disk (tokens: rows of 4,096 numbers)", 16384
    ),
    "checkpoint-read": Named(FILES, ("torch",), "the same read back, from the page cache", 16384),
    "data": Named(FILES, ("torch",), "batches of 64 rows of 512 tokens from the token cache", 262144),
}


def chosen(names: Iterable[str], *, experts: bool) -> list[str]:
    """The cases asked for: all of a group where its beginning is named (`experts`), all that fit where none is.

    Raises UsageError for a name that nothing has, or a case that the model has no experts for.
    """
    found: list[str] = []
    for name in names:
        hits = [one for one in CASES if one == name] or [one for one in CASES if one.startswith(f"{name}-")]
        if not hits:
            known = {*CASES, *(one.partition("-")[0] for one in CASES)}
            raise unknown("case", name, known, listed_by="trnt bench --list")
        found += [one for one in hits if one not in found]
    if found and not experts and (without := [name for name in found if CASES[name].experts]):
        raise UsageError(f"{without[0]} needs a model with experts", "name one by --model; 'trnt models' lists them")
    return found or [name for name, case in CASES.items() if experts or not case.experts]


def computed_by(name: str, asked: Iterable[str], kind: str, *, has_nki: bool) -> list[str]:
    """Who computes a case on a device of `kind`: those asked for that have it and run there, else its default.

    has_nki: whether NKI is installed. Raises TrntError for nki where it cannot run.
    """
    wanted = list(asked)
    for one in wanted:
        if one not in KERNELS:
            raise unknown("kernels", one, KERNELS)
        if kind not in WHERE[one] or (one == "nki" and not has_nki):
            raise TrntError(
                f"--kernels {one} does not run here ({kind}{'' if has_nki or one != 'nki' else ', NKI not installed'})",
                "use nki-sim to interpret the kernels on the CPU" if one == "nki" else "leave it out",
            )
    able = [one for one in CASES[name].kernels if kind in WHERE[one] and (one != "nki" or has_nki)]
    return [one for one in able if one in wanted] if wanted else [one for one in able if one != "nki-sim"][:1]


def as_rows() -> list[dict[str, object]]:
    """`--list --json`."""
    return [{"name": name, **{k: v for k, v in vars(case).items() if k != "module"}} for name, case in CASES.items()]
