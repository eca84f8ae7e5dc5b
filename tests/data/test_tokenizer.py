"""Facts about tokenizer folders."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from trnt.data import tokenizer
from trnt.data.sources import SAMPLE_TOKENIZER
from trnt.errors import TrntError, UsageError


def test_the_bundled_tokenizer_is_complete() -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(SAMPLE_TOKENIZER)
    assert len(loaded) == 4096
    text = "Héllo 🙂\t\r\n  «x»  don't"
    assert loaded.decode(loaded(text).input_ids) == text
    chat = loaded.apply_chat_template(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert chat.count("<|im_start|>") == 4
    assert chat.endswith("<|im_start|>assistant\n")
    names = [path.name for path in tokenizer.tokenizer_files(SAMPLE_TOKENIZER)]
    assert names == ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no tokenizer folder"):
        tokenizer.tokenizer_folder(str(tmp_path / "x"))
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        tokenizer.tokenizer_folder(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    assert tokenizer.tokenizer_folder(str(tmp_path / "tokenizer.json")) == tmp_path
    with pytest.raises(TrntError, match="cannot read"):
        tokenizer.load(tmp_path)


@pytest.mark.parametrize("value", ["<|im_end|>", {"content": "<|im_end|>", "lstrip": False}])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_the_end_token_is_read_in_every_form(tmp_path: Path, value: object, file: str) -> None:
    (tmp_path / file).write_text(json.dumps({"eos_token": value}))
    loaded = tokenizer.load(SAMPLE_TOKENIZER)
    assert tokenizer.eos_id(tmp_path, loaded) == 3
    assert tokenizer.special_id(tmp_path, "bos_token", loaded) is None


def test_an_id_without_a_row_in_the_model_is_named() -> None:
    tokenizer.check_vocabulary(SimpleNamespace(max_id=99), 100, "m")
    with pytest.raises(UsageError, match="id 100, and m has 100 rows"):
        tokenizer.check_vocabulary(SimpleNamespace(max_id=100), 100, "m")
