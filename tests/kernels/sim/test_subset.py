"""The Python that NKI's compiler accepts; functions that a kernel calls are held to it too."""

from __future__ import annotations

from typing import Any

import pytest

from trnt.kernels import sim
from trnt.kernels.sim import language as nl
from trnt.kernels.sim import subset

SIZE = 4
GROWS: list[int] = []


def helper(n):
    return [i for i in range(n) if i is not None]


def plain(n):
    total = 0
    for i in range(n):
        if i > 1:
            total += i
        else:
            total -= 1
    assert total > -9, f"a message may be made: {total}"
    return (total, SIZE)


def calls_helper():
    return helper(2)


def reads_a_list():
    return GROWS


def lambda_inside():
    return lambda: 1


def generator_inside():
    return sum(i for i in range(3))


def keyword_only(a, *, b):
    return a + b


def with_inside(path):
    with open(path) as file:
        return file


def with_no_reorder():
    with nl.no_reorder():
        return 1


def walrus(n):
    if (m := n) > 1:
        return m
    return n


@pytest.mark.parametrize("function", [plain, with_no_reorder])
def test_accepted(function: Any) -> None:
    subset.check(function)


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (calls_helper, "is / is not"),
        (reads_a_list, "the global GROWS"),
        (lambda_inside, "lambda"),
        (generator_inside, "generator"),
        (keyword_only, "keyword-only"),
        (with_inside, "with, except"),
        (walrus, "assignment inside"),
    ],
)
def test_refused_with_its_line(function: Any, word: str) -> None:
    with pytest.raises(sim.Refused, match=word) as caught:
        subset.check(function)
    assert caught.value.cause.startswith("test_subset.py:")
