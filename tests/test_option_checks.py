"""Checks turn text into values, or say what to type."""

from __future__ import annotations

from typing import Any

import pytest

from trnt import option_checks as checks
from trnt.errors import UsageError


@pytest.mark.parametrize(
    ("check", "given", "read"),
    [
        (checks.whole(1), "12", 12),
        (checks.whole(1, also=-1), "-1", -1),
        (checks.positive, "3e-4", 3e-4),
        (checks.switch, "No", False),
        (checks.switch, True, True),
        (checks.one_of("a", "b"), "b", "b"),
        (checks.text, "x", "x"),
        (checks.size_in_bytes, "5GB", 5 * 10**9),
        (checks.size_in_bytes, "1.5 KiB", 1536),
        (checks.size_in_bytes, "77", 77),
    ],
)
def test_values(check: Any, given: Any, read: Any) -> None:
    assert check("name", given) == read


@pytest.mark.parametrize(
    ("check", "given"),
    [
        (checks.whole(1), "0"),
        (checks.whole(1), "1e3"),
        (checks.whole(1), True),
        (checks.positive, "nan"),
        (checks.positive, "fast"),
        (checks.switch, "perhaps"),
        (checks.one_of("alpha", "beta"), "alfa"),
        (checks.text, "  "),
        (checks.size_in_bytes, "5 parsec"),
        (checks.size_in_bytes, "0"),
    ],
)
def test_what_is_wrong_comes_with_a_fix(check: Any, given: Any) -> None:
    with pytest.raises(UsageError) as caught:
        check("some_name", given)
    assert "--some-name" in caught.value.cause
    assert caught.value.fix


def test_flags() -> None:
    assert checks.flag_of("seq_len") == "--seq-len"
    assert checks.flag_of("training.seq_len") == "--training.seq_len"
