"""The option table: every row is checked, and nothing wrong gets through."""

import math

import pytest

from trnt.errors import UsageError
from trnt.options import BY_KEY, BY_NAME, OPTIONS, flag_of


def test_names_and_keys_are_unique() -> None:
    assert len(BY_NAME) == len(BY_KEY) == len(OPTIONS)


def test_every_default_passes_its_own_check() -> None:
    for option in OPTIONS:
        if option.default is not None:
            assert option.check(option.name, option.default) == option.default


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("steps", -1),
        ("steps", "1e3"),
        ("steps", True),
        ("steps", 2.5),
        ("seq_len", "many"),
        ("global_batch_size", 0),
        ("global_batch_size", -2),
        ("lr", 0),
        ("lr", "-1e-3"),
        ("lr", "nan"),
        ("lr", math.inf),
        ("lr", "fast"),
        ("layers", 0),
        ("device", "tpu"),
        ("moe_balance", "biass"),
        ("shuffle", "perhaps"),
        ("data", "  "),
    ],
)
def test_wrong_values_are_refused_with_a_fix(name: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        BY_NAME[name].check(name, value)
    assert flag_of(name) in caught.value.cause
    assert caught.value.fix
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [("steps", "12", 12), ("lr", "3e-4", 3e-4), ("shuffle", "no", False), ("global_batch_size", "-1", -1)],
)
def test_text_is_read_as_the_option_s_type(name: str, given: str, read: object) -> None:
    assert BY_NAME[name].check(name, given) == read
