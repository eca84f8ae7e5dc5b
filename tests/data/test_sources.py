"""What a user may name as data, and every way it can be wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from trnt.data import sources
from trnt.errors import UsageError


def read(data: Path | str, field: str = "text") -> list[str]:
    return list(sources.documents(sources.find_files(str(data)), field))


def test_a_text_file_is_one_document_or_several_at_the_separator(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n<|endoftext|>\nthree\n")
    assert read(path) == ["one\ntwo", "three\n"]
    path.write_bytes("\ufeffwith a mark".encode())
    assert read(path) == ["with a mark"]


def test_a_folder_is_searched_through_in_order_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a/1.md", ".git/x.txt", "c.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read(tmp_path) == ["a/1.md", "b/2.txt"]
    assert read(f"{tmp_path}/*/*.txt") == ["b/2.txt"]


def test_jsonl_and_gzip(tmp_path: Path) -> None:
    rows = [{"text": "a", "body": "x"}, {"text": "b", "body": "y"}]
    body = "\n\n".join(json.dumps(row) for row in rows)
    (tmp_path / "d.jsonl").write_text(body)
    with gzip.open(tmp_path / "d.jsonl.gz", "wt") as file:
        file.write(body)
    assert read(tmp_path / "d.jsonl") == read(tmp_path / "d.jsonl.gz") == ["a", "b"]
    assert read(tmp_path / "d.jsonl", "body") == ["x", "y"]


@pytest.mark.parametrize(
    ("name", "content", "cause", "fix"),
    [
        ("d.jsonl", b'{"text": "a"}\n{"tex": "b"}', "line 2 has no field 'text'", "tex"),
        ("d.jsonl", b'{"text": "a"\n', "line 1 is not JSON", "JSON object"),
        ("d.jsonl", b'["text"]\n', "line 1 has no field", "not an object"),
        ("d.jsonl", b'{"text": 3}\n', "is not text", "--text-field"),
        ("d.txt", b"fine\n\xff\xfe", "not UTF-8 text (byte 5)", "iconv"),
        ("d.txt.gz", b"not gzip", "cannot read", "fetch it again"),
    ],
)
def test_wrong_files_name_the_place_and_the_fix(
    tmp_path: Path, name: str, content: bytes, cause: str, fix: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read(tmp_path / name)
    assert cause in caught.value.cause
    assert name in caught.value.cause
    assert fix in caught.value.fix


def test_a_cut_off_gzip_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "d.txt.gz"
    path.write_bytes(gzip.compress(b"hello " * 1000)[:-12])
    with pytest.raises(UsageError, match="cannot read"):
        read(path)


def test_names_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "novels").mkdir()
    with pytest.raises(UsageError) as caught:
        read(tmp_path / "novel")
    assert "novels" in caught.value.fix
    with pytest.raises(UsageError, match="no text in the folder"):
        read(tmp_path / "novels")
    with pytest.raises(UsageError, match="no file matches"):
        read(f"{tmp_path}/*.txt")
    (tmp_path / "x.pdf").write_text("")
    with pytest.raises(UsageError, match="no format"):
        read(tmp_path / "x.pdf")


def test_the_bundled_sample_is_a_few_megabytes_of_prose() -> None:
    texts = read(sources.SAMPLE_TEXT)
    assert len(texts) == 4
    assert 1e6 < sum(len(text.encode()) for text in texts) < 3e6
    assert "It is a truth universally acknowledged" in "".join(texts)
    assert "Gutenberg" not in "".join(texts)
