"""The option table as Typer's parameters and back as words: the same settings."""

from __future__ import annotations

from pathlib import Path

from trnt import config
from trnt.flags import signature, words
from trnt.options import OPTIONS


def test_every_option_is_a_parameter_and_a_command_s_own_are_added() -> None:
    found = signature((("mine", str, "x", None),)).parameters
    assert next(iter(found)) == "context"
    assert {option.name for option in OPTIONS} <= set(found)
    assert list(found)[-3:] == ["recipe", "set_", "mine"]


def test_words_say_what_was_chosen_wherever_it_was_said(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text("steps = 9\n[training]\nmax_norm = 0.5\n")
    given = {"model": "qwen3-tiny", "shuffle": False, "force": True, "nproc": "4"}
    environment = {"TRNT_SEQ_LEN": "128"}
    settings = config.resolve(
        given, sets=["lr_scheduler.decay_type=linear"], recipe=str(recipe), environment=environment
    )
    found = words(settings, without=("nproc",))
    assert " ".join(found) == (
        "--model qwen3-tiny --no-shuffle --seq-len 128 --steps 9 --force "
        "--training.max_norm 0.5 --lr_scheduler.decay_type linear"
    )
    flags = {"model": "qwen3-tiny", "seq_len": "128", "steps": "9", "shuffle": False, "force": True}
    again = config.resolve(flags, arguments=found[-4:], environment={})
    assert {key: value for key, value in again.values.items() if key != "nproc"} == {
        key: value for key, value in settings.values.items() if key != "nproc"
    }
    assert {key: str(value) for key, value in again.extra.items()} == {k: str(v) for k, v in settings.extra.items()}
