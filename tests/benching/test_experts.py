"""Every kernel of these cases computes what the reference computes."""

from __future__ import annotations

import pytest

from tests.benching.cases import errors, pairs
from trnt.benching import names


@pytest.mark.parametrize(("name", "kernels"), pairs(names.EXPERTS))
def test_a_case_computes_what_its_reference_does(name: str, kernels: str) -> None:
    error, allowed = errors(name, kernels)
    assert error <= allowed


@pytest.mark.parametrize(("name", "kernels"), [pair for pair in pairs(names.EXPERTS) if pair[1] != "nki-sim"])
def test_in_bf16_too(name: str, kernels: str) -> None:
    error, allowed = errors(name, kernels, tokens=16, dtype="bf16")
    assert error <= allowed
