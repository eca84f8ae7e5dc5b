"""Cases and kernels by name."""

from __future__ import annotations

import pytest

from trnt.benching import names
from trnt.benching.run import case_of
from trnt.errors import TrntError, UsageError


@pytest.mark.parametrize("name", names.CASES)
def test_a_name_is_a_case_with_those_kernels(name: str) -> None:
    assert set(case_of(name).kernels) == set(names.CASES[name].kernels)


def test_a_beginning_names_all_of_them() -> None:
    assert names.chosen(["experts", "route"], experts=True) == ["experts-forward", "experts-backward", "route"]
    assert names.chosen(["attention"], experts=False) == ["attention"]
    assert names.chosen([], experts=True) == list(names.CASES)
    assert not [name for name in names.chosen([], experts=False) if names.CASES[name].experts]


def test_wrong_names() -> None:
    with pytest.raises(UsageError) as caught:
        names.chosen(["atention"], experts=True)
    assert "attention" in caught.value.fix
    with pytest.raises(UsageError, match="needs a model with experts"):
        names.chosen(["route"], experts=False)


@pytest.mark.parametrize(
    ("asked", "kind", "has_nki", "expected"),
    [
        ([], "cpu", False, ["cpu"]),
        ([], "cpu", True, ["cpu"]),
        ([], "cuda", False, ["torch"]),
        ([], "neuron", True, ["nki"]),
        ([], "neuron", False, ["torch"]),
        (["cpu", "nki-sim"], "cpu", False, ["cpu", "nki-sim"]),
    ],
)
def test_who_computes(asked: list[str], kind: str, has_nki: bool, expected: list[str]) -> None:
    assert names.computed_by("experts-forward", asked, kind, has_nki=has_nki) == expected


@pytest.mark.parametrize(("asked", "kind"), [("nki", "cpu"), ("cpu", "cuda"), ("nki", "neuron")])
def test_who_cannot_compute_here(asked: str, kind: str) -> None:
    with pytest.raises(TrntError, match=f"--kernels {asked} does not run here"):
        names.computed_by("experts-forward", [asked], kind, has_nki=False)
