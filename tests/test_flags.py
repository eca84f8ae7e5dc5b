"""The option table as Typer's parameters and back as words: the same settings."""

from __future__ import annotations

from trnt import config
from trnt.flags import signature, words
from trnt.options import OPTIONS


def test_every_option_is_a_parameter_and_a_command_s_own_are_added() -> None:
    found = signature((("mine", str, "x", None),)).parameters
    assert next(iter(found)) == "context"
    assert {option.name for option in OPTIONS} <= set(found)
    assert list(found)[-3:] == ["recipe", "set_", "mine"]


def test_words_say_what_was_given() -> None:
    given = {"model": "qwen3-tiny", "steps": "7", "shuffle": False, "force": True, "lr": None, "tp": "2"}
    assert words(given) == ["--model", "qwen3-tiny", "--steps", "7", "--no-shuffle", "--force", "--tp", "2"]
    chosen = {name: value for name, value in given.items() if value is not None}
    assert config.resolve(chosen, environment={})["shuffle"] is False
