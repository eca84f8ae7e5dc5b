"""Which kernels a run gets, and the line that says why."""

from __future__ import annotations

import pytest

from trnt.errors import TrntError
from trnt.kernels import choose as module
from trnt.kernels.choose import choose
from trnt.options import BY_NAME, KERNELS


@pytest.mark.parametrize(
    ("asked", "kind", "installed", "name", "why"),
    [
        ("auto", "cpu", False, "torch", "written for it"),
        ("torch", "cpu", False, "torch", "as asked"),
        ("auto", "cuda", False, "torch", "NKI is for Neuron, not cuda"),
        ("auto", "neuron", False, "torch", "not installed"),
        ("auto", "neuron", True, "nki", "NKI is installed"),
        ("nki", "neuron", True, "nki", "not run on hardware"),
        ("nki-sim", "cpu", False, "nki-sim", "interpreted"),
    ],
)
def test_the_choice(
    monkeypatch: pytest.MonkeyPatch, asked: str, kind: str, installed: bool, name: str, why: str
) -> None:
    monkeypatch.setattr(module, "has_nki", lambda: installed)
    found = choose(asked, kind, 64, 8)
    assert found.name == name
    assert why in found.why


@pytest.mark.parametrize(
    ("asked", "kind", "experts", "top_k", "fix"),
    [
        ("nki", "cpu", 64, 8, "nki-sim"),
        ("nki", "neuron", 64, 8, "trnt doctor"),
        ("nki-sim", "cuda", 64, 8, "--device cpu"),
        ("nki-sim", "cpu", 0, 0, "leave --kernels out"),
        ("nki-sim", "cpu", 64, 9, "--kernels torch"),
    ],
)
def test_what_cannot_run_says_what_to_type(asked: str, kind: str, experts: int, top_k: int, fix: str) -> None:
    with pytest.raises(TrntError) as caught:
        choose(asked, kind, experts, top_k)
    assert fix in caught.value.fix


def test_a_dense_model_says_nothing_of_kernels() -> None:
    assert choose("auto", "cpu", 0, 0).why == ""


def test_the_option_offers_them_all() -> None:
    for name in KERNELS:
        assert BY_NAME["kernels"].check("kernels", name) == name
