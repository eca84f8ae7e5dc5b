"""Facts about a Hugging Face tokenizer folder, read without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trnt.errors import TrntError, UsageError

# What an export must carry over, byte for byte, where the source has it.
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
COMMON_EOS = ("<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>")


def tokenizer_folder(name: str) -> Path:
    """The folder meant by --tokenizer. Raises UsageError when it is none, or has no tokenizer.json."""
    folder = Path(name)
    if folder.name == "tokenizer.json" and folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        raise UsageError(f"no tokenizer folder {name}", "give a folder that holds a tokenizer.json")
    if not (folder / "tokenizer.json").is_file():
        raise UsageError(
            f"{folder} has no tokenizer.json",
            "save it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)",
        )
    return folder


def tokenizer_files(folder: str | Path) -> list[Path]:
    """The tokenizer's files that are there."""
    return [path for name in FILES if (path := Path(folder) / name).is_file()]


def load(folder: Path) -> Any:
    """The `tokenizers.Tokenizer`. Raises TrntError when the file is broken."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises plain Exception
        raise TrntError(f"cannot read {folder / 'tokenizer.json'}: {error}", "fetch the tokenizer again") from None


def special_token(folder: Path, name: str) -> str | None:
    """`eos_token`, `bos_token` or `pad_token` as text, from the config or the special tokens map."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        path = folder / file
        if not path.is_file():
            continue
        try:
            value = json.loads(path.read_text(encoding="utf-8")).get(name)
        except (ValueError, AttributeError):
            raise TrntError(f"{path} is not JSON", "fetch the tokenizer again") from None
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            return value
    return None


def special_id(folder: Path, name: str, tokenizer: Any = None) -> int | None:
    """The id of a special token, None when the tokenizer has no such token."""
    text = special_token(folder, name)
    if text is None:
        return None
    found = (tokenizer or load(folder)).token_to_id(text)
    return None if found is None else int(found)


def eos_id(folder: Path, tokenizer: Any) -> int:
    """The id that ends a document. Raises TrntError when none can be found."""
    found = special_id(folder, "eos_token", tokenizer)
    if found is not None:
        return found
    for text in COMMON_EOS:
        number = tokenizer.token_to_id(text)
        if number is not None:
            return int(number)
    raise TrntError(
        f"the tokenizer in {folder} names no end-of-text token", 'add "eos_token" to its tokenizer_config.json'
    )


def check_vocabulary(tokens: Any, vocab_size: int, model_name: str) -> None:
    """Raise UsageError when the data holds an id that the model has no row for."""
    if tokens.max_id >= vocab_size:
        raise UsageError(
            f"the tokenizer gives id {tokens.max_id}, and {model_name} has {vocab_size} rows (0 to {vocab_size - 1})",
            "use a tokenizer with fewer ids, or a model with a larger vocabulary",
        )
