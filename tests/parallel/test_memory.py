"""What is chosen when memory is short: the first choice that fits, said in words, or a refusal with the sizes."""

from __future__ import annotations

import pytest

from trnt.errors import TrntError
from trnt.models import registry
from trnt.parallel.memory import LADDER, SHARE, Choice, choose, ladder, words
from trnt.parallel.plan import Batch, peak_bytes

GB = 1 << 30


def needed(choice: Choice) -> int:
    """20 GiB as asked, two less for each step down the ladder."""
    return (20 - 2 * LADDER.index(choice)) * GB


def test_what_fits_is_left_as_it_was_asked() -> None:
    assert choose(list(LADDER), needed, int(21 * GB / SHARE), "auto") == (Choice(), None)


def test_the_first_that_fits_is_chosen_and_said() -> None:
    choice, said = choose(list(LADDER), needed, int(17 * GB / SHARE), "auto")
    assert choice == LADDER[2]
    assert said is not None
    assert "20.0 GiB are needed" in said
    assert words(Choice(), LADDER[2]) in said


def test_strict_refuses_with_the_sizes_and_what_auto_would_do() -> None:
    with pytest.raises(TrntError, match="does not fit") as caught:
        choose(list(LADDER), needed, int(17 * GB / SHARE), "strict")
    assert "gradients in bf16" in caught.value.fix


@pytest.mark.parametrize("policy", ["auto", "strict"])
def test_what_never_fits_is_an_error(policy: str) -> None:
    with pytest.raises(TrntError, match="does not fit") as caught:
        choose(list(LADDER), needed, GB, policy)
    assert "--layers" in caught.value.fix


def test_off_tries_what_was_asked() -> None:
    assert choose(list(LADDER), needed, GB, "off") == (Choice(), None)


def test_what_is_chosen_by_hand_is_held_fast() -> None:
    choices = ladder({"states": "8bit", "gradients": None, "recompute": None})
    assert {choice.states for choice in choices} == {"8bit"}
    assert len(choices) == len(set(choices)) == 4
    assert ladder({"states": "fp32", "gradients": "fp32", "recompute": "none"})[0] == Choice()


def test_each_step_down_needs_less_for_the_headline_model() -> None:
    entry = registry.get("qwen3-30b-a3b").cut(4, 64)
    sizes = [peak_bytes(entry, Batch(256, 8), "fp32", choice, "adamw", 320 << 20) for choice in LADDER]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 28 * GB
    assert sizes[-1] < 16 * GB
