"""Rebuild trnt/data/sample: Jane Austen's prose and a byte-level BPE tokenizer of 4,096 tokens trained on it.

The novels come from Debian's package r-cran-janeaustenr (an R data base). Needs `apt-get`, `dpkg` and, beside trnt's
own environment, `pip install rdata`. The same input gives the same bytes.

    python tools/make_sample.py [--package-dir UNPACKED_DEB] [--out trnt/data/sample]
"""

from __future__ import annotations

import argparse
import bz2
import json
import lzma
import re
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PACKAGE = "r-cran-janeaustenr"
# Name in the package -> file name. First published 1813, 1811, 1817, 1817.
NOVELS = {
    "prideprejudice": "pride_and_prejudice",
    "sensesensibility": "sense_and_sensibility",
    "persuasion": "persuasion",
    "northangerabbey": "northanger_abbey",
}
SPECIAL = ["<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 4096
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


def unpack(folder: Path) -> Path:
    """Fetch the package with apt-get and unpack it; nothing is installed."""
    subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, check=True)
    subprocess.run(["dpkg", "-x", str(next(folder.glob("*.deb"))), "unpacked"], cwd=folder, check=True)
    return folder / "unpacked"


def read_novels(package: Path) -> dict[str, list[str]]:
    """Novel -> its lines, from R's lazy-load data base: an index (.rdx) of offsets into compressed objects (.rdb)."""
    import rdata

    base = next(package.rglob("janeaustenr/data/Rdata.rdb"))
    index = rdata.conversion.convert(rdata.parser.parse_data(base.with_suffix(".rdx").read_bytes()))
    blob = base.read_bytes()
    novels: dict[str, list[str]] = {}
    for name in NOVELS:
        offset, length = (int(number) for number in index["variables"][name])
        raw = inflate(blob[offset : offset + length])
        value: Any = rdata.conversion.convert(rdata.parser.parse_data(raw))
        novels[name] = [str(line) for line in value]
    return novels


def inflate(chunk: bytes) -> bytes:
    """One object: four bytes of length, then zlib data, or a type byte ('2' bzip2, 'Z' xz) and the data."""
    body = chunk[4:]
    if body[:1] == b"2":
        return bz2.decompress(body[1:])
    if body[:1] == b"Z":
        return lzma.LZMADecompressor(lzma.FORMAT_AUTO).decompress(body[1:])
    return zlib.decompress(body)


def prose(lines: list[str]) -> str:
    """One line per paragraph, one blank line between; no italics marks, no end note."""
    paragraphs: list[str] = []
    current: list[str] = []
    for line in [*lines, ""]:
        text = re.sub(r"\s+", " ", line.replace("_", "")).strip()
        if text:
            current.append(text)
        elif current:
            paragraphs.append(" ".join(current))
            current = []
    if "A NOTE ON THE TEXT" in paragraphs:  # an editor's, of 1965
        paragraphs = paragraphs[: paragraphs.index("A NOTE ON THE TEXT")]
    ends = {"THE END", "FINIS", "END"}
    return "\n\n".join(p for p in paragraphs if p.upper() not in ends) + "\n"


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE: every byte has a token, so that any text survives the round trip."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """A complete Hugging Face tokenizer folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    names = {"eos_token": SPECIAL[0], "pad_token": SPECIAL[1]}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "additional_special_tokens": SPECIAL[2:],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
    }
    for name, value in (("tokenizer_config.json", config), ("special_tokens_map.json", names)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--package-dir", type=Path, help="the package, already unpacked")
    parser.add_argument("--out", type=Path, default=Path("trnt/data/sample"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        novels = read_novels(given.package_dir or unpack(Path(scratch)))
    texts = {NOVELS[name]: prose(lines) for name, lines in novels.items()}
    (given.out / "text").mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (given.out / "text" / f"{name}.txt").write_text(text, encoding="utf-8")
    tokenizer = train_tokenizer(list(texts.values()))
    save_tokenizer(tokenizer, given.out / "tokenizer")
    whole = sum(len(text.encode()) for text in texts.values())
    tokens = sum(len(tokenizer.encode(text).ids) for text in texts.values())
    print(f"{len(texts)} novels, {whole:,} bytes, {tokens:,} tokens, {whole / tokens:.2f} bytes per token")


if __name__ == "__main__":
    main()
