"""What families share; cuts are tested with each family."""

from __future__ import annotations

from typing import Any

import pytest

from trnt.errors import TrntError
from trnt.models import shared

YARN = {"type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("config", "theta", "kind"),
    [
        ({}, 10000.0, "default"),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, "default"),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, 7.0, "default"),
        ({"rope_theta": 7, "rope_parameters": {"rope_theta": 7.0}}, 7.0, "default"),
        ({"rope_theta": 1e4, "rope_scaling": YARN}, 1e4, "yarn"),
        ({"rope_parameters": {**YARN, "rope_type": "yarn", "rope_theta": 2.0}}, 2.0, "yarn"),
    ],
)
def test_both_forms_of_rope(config: dict[str, Any], theta: float, kind: str) -> None:
    found, scaling = shared.rope(config, "X", ("default", "yarn"))
    assert (found, scaling["rope_type"]) == (theta, kind)


def test_two_thetas_and_unknown_scalings_are_refused() -> None:
    with pytest.raises(TrntError, match=r"rope_theta 1\.0 and rope_parameters 2\.0"):
        shared.rope({"rope_theta": 1.0, "rope_parameters": {"rope_theta": 2.0}}, "X")
    with pytest.raises(TrntError, match="yarn rope scaling, which trnt's X"):
        shared.rope({"rope_scaling": YARN}, "X")


def test_what_a_family_does_not_have() -> None:
    shared.only({}, {"attention_bias": False}, "X")
    with pytest.raises(TrntError, match="attention_bias True"):
        shared.only({"attention_bias": True}, {"attention_bias": False}, "X")
