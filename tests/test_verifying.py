"""`trnt verify` on whole folders: alone, against another form, against a larger model, and when something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.test_converting import convert
from trnt import verifying
from trnt.errors import UsageError


def test_a_whole_checkpoint_is_right_alone_and_against_its_other_form(
    released: Callable[..., Path], tmp_path: Path
) -> None:
    source = released(experts=4)
    convert(source, tmp_path / "dcp")
    for path, against in (
        (source, None),
        (tmp_path / "dcp", None),
        (tmp_path / "dcp", source),
        (source, tmp_path / "dcp"),
    ):
        report = verifying.verify_paths(str(path), str(against) if against else None)
        assert report["ok"], report["problems"]
        assert (report["checksums"] is not None) == (path != source)


def test_a_cut_model_is_compared_with_the_first_layers_and_experts(
    released: Callable[..., Path], tmp_path: Path
) -> None:
    source = released(experts=4)
    convert(source, tmp_path / "cut", layers=2, experts=2)
    for a, b in ((source, tmp_path / "cut"), (tmp_path / "cut", source)):
        assert verifying.verify_paths(str(a), str(b))["ok"]


def test_a_changed_value_and_a_nan_are_found(released: Callable[..., Path], tmp_path: Path) -> None:
    source = released()
    convert(source, tmp_path / "copy", to="hf")
    held = load_file(tmp_path / "copy" / "model.safetensors")
    held["model.norm.weight"][0] += 1
    held["lm_head.weight"][5, 5] = float("nan")
    save_file(held, tmp_path / "copy" / "model.safetensors", metadata={"format": "pt"})
    report = verifying.verify_paths(str(tmp_path / "copy"), str(source))
    assert not report["ok"]
    said = " ".join(report["problems"])
    assert "2 tensors are not what was written" in said
    assert "2 tensors differ" in said
    assert "lm_head.weight: 1 NaN" in said
    row = next(r for r in report["rows"] if r.tensor == "model.norm.weight")
    assert row.max_difference == pytest.approx(1.0, rel=1e-6)  # fp32 rounding of the sum


def test_a_family_that_trnt_does_not_know_is_compared_by_names(
    released: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = released("one"), released("two")
    for folder in (one, two):
        text = (folder / "config.json").read_text()
        (folder / "config.json").write_text(text.replace('"model_type": "qwen3"', '"model_type": "mamba"'))
    assert verifying.verify_paths(str(one), None)["ok"]
    assert verifying.verify_paths(str(one), str(two))["ok"]
    assert "model_type 'mamba'" in capsys.readouterr().err
    held = load_file(two / "model.safetensors")
    held["model.norm.weight"][0] += 1
    save_file(held, two / "model.safetensors")
    assert not verifying.verify_paths(str(one), str(two))["ok"]


def test_two_models_are_not_compared(released: Callable[..., Path]) -> None:
    one, two = released("one"), released("two", experts=4)
    with pytest.raises(UsageError, match="different models"):
        verifying.verify_paths(str(one), str(two))
