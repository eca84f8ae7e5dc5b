"""The token cache: right, reused, never half there."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trnt.data import tokens
from trnt.data.sources import SAMPLE_TOKENIZER
from trnt.data.tokenizer import load
from trnt.errors import TrntError, UsageError


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRNT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in (("a", "It was the best of times."), ("b", "\n \n"), ("c", "Call me Ishmael. 🐳")):
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_tokens_are_the_documents_each_ended_by_eos(texts: Path) -> None:
    made = tokens.prepare(str(texts), None)
    ids = made.tokens()
    starts = [*made.starts().tolist(), len(ids)]
    tokenizer = load(SAMPLE_TOKENIZER)
    parts = [ids[a : b - 1].tolist() for a, b in itertools.pairwise(starts)]
    assert [tokenizer.decode(part) for part in parts] == ["It was the best of times.", "Call me Ishmael. 🐳"]
    assert [ids[b - 1] for b in starts[1:]] == [made.eos_id, made.eos_id]
    assert (made.num_documents, made.skipped_documents) == (2, 1)
    assert made.num_tokens == len(ids)
    assert made.max_id == ids.max()


def test_the_cache_is_reused_and_follows_the_content(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tokens.prepare(str(texts), None)
    monkeypatch.setattr(tokens, "build", lambda *a: pytest.fail("built again"))
    assert tokens.prepare(str(texts), None) == first
    monkeypatch.undo()
    os.environ["TRNT_CACHE"] = str(texts.parent / "cache")
    (texts / "a.txt").write_text("It was the worst of times.")
    assert tokens.prepare(str(texts), None).fingerprint != first.fingerprint
    moved = texts.rename(texts.with_name("elsewhere"))
    (moved / "a.txt").write_text("It was the best of times.")
    assert tokens.prepare(str(moved), None).fingerprint == first.fingerprint


@pytest.mark.parametrize("damage", ["truncate", "delete", "garbage"])
def test_a_damaged_cache_is_made_again(texts: Path, damage: str) -> None:
    first = tokens.prepare(str(texts), None)
    whole = np.array(first.tokens())
    file = Path(first.path) / "tokens.bin"
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-4])
    elif damage == "delete":
        file.unlink()
    else:
        (Path(first.path) / "meta.json").write_text("{")
    again = tokens.prepare(str(texts), None)
    assert again == first
    assert np.array_equal(again.tokens(), whole)


def test_processes_that_race_all_end_with_the_same_cache(texts: Path, tmp_path: Path) -> None:
    code = f"from trnt.data.tokens import prepare; print(prepare({str(texts)!r}, None).fingerprint)"
    env = {**os.environ, "TRNT_CACHE": str(tmp_path / "race")}
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env, text=True) for _ in range(3)
    ]
    answers = {process.communicate(timeout=60)[0].strip() for process in started}
    assert all(process.returncode == 0 for process in started)
    assert len(answers) == 1
    assert [p.name for p in (tmp_path / "race" / "tokens").iterdir()] == [answers.pop()[:16]]


def test_a_failed_build_leaves_nothing(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (texts / "d.txt").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="UTF-8"):
        tokens.prepare(str(texts), None)
    assert list((texts.parent / "cache" / "tokens").iterdir()) == []


def test_data_without_text_is_refused(texts: Path) -> None:
    with pytest.raises(UsageError, match="no text"):
        tokens.prepare(str(texts / "b.txt"), None)


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (texts.parent / "file").write_text("")
    monkeypatch.setenv("TRNT_CACHE", str(texts.parent / "file" / "below"))
    assert tokens.prepare(str(texts), None).num_documents == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_tokenizer_without_an_end_token_is_refused(texts: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")).save(str(bare / "tokenizer.json"))
    with pytest.raises(TrntError, match="no end-of-text token"):
        tokens.prepare(str(texts), str(bare))
