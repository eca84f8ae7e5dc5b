"""What the interpreter refuses, as a table; the error names the kernel's line, the instruction and the limit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from trnt.errors import TrntError

HERE = str(Path(__file__).parent)

RULES = {
    "partitions": "a tile has at most 128 partitions",
    "start_partition": "an operand of over 64 partitions begins at 0, of 33 to 64 at 0 or 64, else at a multiple of 32",
    "free_dims": "an access pattern has at most 4 free dimensions",
    "stationary": "the stationary operand of a matmul has at most 128 columns",
    "moving": "the moving operand of a matmul has at most 512 columns",
    "contraction": "both operands of a matmul have the same partitions, and dst [stationary columns, moving columns]",
    "transpose_size": "the tensor engine transposes at most 128 x 128, the vector engine 32 x 32",
    "bank": "a matmul's output lies within one PSUM bank of 2 KiB per partition",
    "banks": "PSUM has 8 banks of 2 KiB per partition",
    "sbuf": "the tensors alive at one time fit the state buffer",
    "memory": "each engine reads and writes only the memories it reaches",
    "two_psum": "an instruction of two tiles reads at most one of them from PSUM",
    "engine": "an instruction runs only on the engines that have it",
    "dtype": "each instruction takes only its own dtypes",
    "accumulate": "a matmul adds only to PSUM that a matmul has written",
    "unwritten": "nothing is read that was never written",
    "outside": "every access lies inside its tensor",
    "shape": "operands have the shapes that the instruction asks for",
    "two_writers": "a row of an output is written once, or added to",
    "duplicates": "the rows of a scatter or of an indexed addition are different",
    "output": "a kernel returns tensors of shared_hbm",
    "dynamic": "what is known only from data is a register: no Python arithmetic, comparison or shape made of it",
    "escape": "a tensor made in the body of a run-time loop is not used after it",
    "order": "iterations of affine_range do not depend on their order",
    "dma": "a transfer has equal element counts and the modes that its descriptor engine knows",
    "language": "the kernel is written in the subset of Python that the compiler accepts",
    "supported": "the instruction, option or function is one that the interpreter has",
    "lnc": "the launch grid is 1: one physical core",
}


class Refused(TrntError):
    """The hardware or its compiler would not take this. `rule` is a key of `RULES`."""

    def __init__(self, rule: str, where: str, what: str, fix: str) -> None:
        super().__init__(f"{where}: {what}", fix)
        self.rule = rule


class Site:
    """Which instruction runs now; for the message only."""

    instruction = ""


def line() -> str:
    """file:line of the innermost frame that is not the interpreter's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def refuse(rule: str, what: str, where: str | None = None) -> NoReturn:
    """Raise `Refused`: the kernel's line, the instruction, what is wrong, and the rule as the way out."""
    name = f"{Site.instruction}: " if Site.instruction else ""
    raise Refused(rule, where or line(), f"{name}{what}", f"keep the rule '{rule}': {RULES[rule]}")
