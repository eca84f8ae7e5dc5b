"""Precedence, names and the recipe that can be read back."""

from pathlib import Path

import pytest

from trnt import config
from trnt.errors import UsageError


@pytest.fixture(autouse=True)
def no_user_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def recipe(folder: Path, text: str) -> str:
    path = folder / "r.toml"
    path.write_text(text)
    return str(path)


def test_flag_beats_environment_beats_recipe_beats_user_config_beats_default(tmp_path: Path) -> None:
    user = tmp_path / "config" / "trnt" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text("steps = 1\nseed = 1\nlr = 0.1\nseq_len = 11\n")
    settings = config.resolve(
        {"steps": 4},
        recipe=recipe(tmp_path, "steps = 2\nseed = 2\nlr = 0.2\n"),
        environment={"TRNT_STEPS": "3", "TRNT_SEED": "3"},
    )
    assert [settings[n] for n in ("steps", "seed", "lr", "seq_len", "batch_size")] == [4, 3, 0.2, 11, 4]
    assert settings.origin("steps") == "flag"
    assert settings.origin("seed") == "TRNT_SEED"
    assert settings.origin("lr") == "recipe r.toml"
    assert settings.origin("seq_len").startswith("user config")
    assert settings.origin("batch_size") == "default"


def test_a_short_name_and_torchtitan_s_name_are_one_option(tmp_path: Path) -> None:
    settings = config.resolve({}, arguments=["--training.seq_len", "64"], environment={"TRNT_SEQ_LEN": "32"})
    assert settings["seq_len"] == 64
    with pytest.raises(UsageError, match="same option"):
        config.resolve({"seq_len": "32"}, arguments=["--training.seq-len=64"], environment={})


@pytest.mark.parametrize(
    ("words", "pairs"),
    [
        (["--a.b", "1"], [("a.b", "1")]),
        (["--a.b=1", "--c.d"], [("a.b", "1"), ("c.d", "true")]),
        (["--a.no_b"], [("a.b", "false")]),
        (["--a.no-b", "--c.d=x=y"], [("a.b", "false"), ("c.d", "x=y")]),
        (["--a.b", "-1"], [("a.b", "-1")]),
        ([], []),
    ],
)
def test_dotted_arguments_are_read_as_torchtitan_does(words: list[str], pairs: list[tuple[str, str]]) -> None:
    assert config.dotted_arguments(words) == pairs


def test_unknown_names_get_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        config.resolve({}, arguments=["--stepz", "3"], environment={})
    assert "--steps" in caught.value.fix
    with pytest.raises(UsageError) as caught:
        config.resolve({}, recipe=recipe(tmp_path, "batch_sise = 3"), environment={})
    assert "batch_sise" in caught.value.cause
    assert "--batch-size" in caught.value.fix
    with pytest.raises(UsageError, match="laptopp"):
        config.resolve({}, recipe="laptopp", environment={})


@pytest.mark.parametrize("text", ["steps = ", "steps = 0", "lr = 'nan'"])
def test_wrong_recipes_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        config.resolve({}, recipe=recipe(tmp_path, text), environment={})


def test_set_needs_a_key_and_a_value() -> None:
    assert config.set_arguments(["a.b=c=d"]) == [("a.b", "c=d")]
    with pytest.raises(UsageError, match="dotted"):
        config.set_arguments(["a.b"])


def test_rendered_settings_read_back_to_the_same(tmp_path: Path) -> None:
    first = config.resolve(
        {"steps": "7", "lr": "2e-3"}, arguments=["--compile.backend", "inductor"], sets=["training.max_norm=0.5"]
    )
    text = config.render(first)
    assert "steps = 7 # flag" in text
    second = config.resolve({}, recipe=recipe(tmp_path, text), environment={})
    assert second.values == first.values
    assert second.extra == first.extra == {"compile.backend": "inductor", "training.max_norm": "0.5"}


def test_every_shipped_recipe_resolves() -> None:
    assert "laptop" in config.recipe_names()
    for name in config.recipe_names():
        assert config.resolve({}, recipe=name, environment={})["steps"] >= 1


def test_empty_environment_variables_are_not_given() -> None:
    assert config.resolve({}, environment={"TRNT_STEPS": ""})["steps"] == 100
