"""A case at a tiny size: what every test of cases needs."""

from __future__ import annotations

import torch

from trnt.benching import names
from trnt.benching.run import case_of
from trnt.benching.sizes import sizes_of
from trnt.benching.work import differences
from trnt.models import registry
from trnt.optim.states import DTYPES


def errors(name: str, kernels: str, *, tokens: int = 48, dtype: str = "fp32") -> tuple[float, float]:
    """(error, what is allowed) of a case's outputs after two calls: the second must not add to the first."""
    torch.manual_seed(0)
    code = DTYPES[dtype]
    sizes = sizes_of(registry.get("qwen3-tiny-moe"), tokens)
    case = case_of(name)
    given = case.inputs(sizes, "cpu", code)
    work = case.kernels[kernels](given)
    for _ in range(2):
        if work.prepare is not None:
            work.prepare()
        work.run()
    error, _ = differences(work.outputs(), case.expected(given))
    return error, case.allowed(code, sizes)


def pairs(module: str) -> list[tuple[str, str]]:
    """(case, kernels) of a module of cases that run on a CPU."""
    return [
        (name, kernels)
        for name, case in names.CASES.items()
        if case.module == module
        for kernels in case.kernels
        if "cpu" in names.WHERE[kernels]
    ]
