"""Reading a Hugging Face folder's weights: safetensors with or without an index, or pytorch_model.bin.

Everything that can be wrong with the files is found from their headers, and listed at once with file and name.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from trnt import console
from trnt.checkpoint.dtypes import code_of, size_of
from trnt.checkpoint.safe import BadFile, Stored, read_at, read_header
from trnt.checkpoint.source import Info, Source, cannot_read, infos, refuse
from trnt.errors import TrntError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
BIN = "pytorch_model.bin"
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
AGAIN = "download or copy the checkpoint again"


class HfSource(Source):
    """Safetensors files."""

    kind = "hf"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._stored: dict[str, tuple[Path, Stored]] = {}
        wanted = self._index() if (path / INDEX).is_file() else None
        names = sorted(set(wanted.values())) if wanted is not None else self._loose()
        problems: list[str] = []
        for name in names:
            problems += self._open(name, wanted)
        if wanted is not None:
            broken = {problem.split(":")[0] for problem in problems}
            problems += [
                f"{file}: the index names {tensor}, which is not in it"
                for tensor, file in wanted.items()
                if tensor not in self._stored and file not in broken
            ]
        refuse(path, problems, AGAIN)
        self.tensors = infos({name: stored for name, (_, stored) in self._stored.items()})

    def _loose(self) -> list[str]:
        found = sorted(file.name for file in self.path.glob("*.safetensors"))
        if SINGLE in found:
            shards = [name for name in found if SHARD.fullmatch(name)]
            refuse(
                self.path, [f"{name}: a shard beside {SINGLE}, and no index" for name in shards], "remove one of them"
            )
            return [SINGLE]
        return found

    def _index(self) -> dict[str, str]:
        try:
            found = json.loads((self.path / INDEX).read_text(encoding="utf-8"))["weight_map"]
            assert all(isinstance(name, str) and isinstance(file, str) for name, file in found.items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError):
            raise TrntError(f"{self.path / INDEX} is not an index of tensors and files", AGAIN) from None
        outside = sorted({file for file in found.values() if file != Path(file).name or file in (".", "..")})
        refuse(self.path, [f"the index names the file {file}, outside the folder" for file in outside], "do not use it")
        extra = sorted(f.name for f in self.path.glob("*.safetensors") if f.name not in set(found.values()))
        shards = [name for name in extra if SHARD.fullmatch(name)]
        refuse(
            self.path,
            [f"{name}: a shard that the index does not name" for name in shards],
            "remove the file, or " + AGAIN,
        )
        if extra:
            console.warn(f"{self.path}: the index does not name {', '.join(extra)}: left out")
        return dict(found)

    def _open(self, name: str, wanted: dict[str, str] | None) -> list[str]:
        """Take a file's tensors in. Returns what is wrong with it."""
        file = self.path / name
        if not file.is_file():
            return [f"{name}: the file is missing"]
        try:
            found = read_header(file)
        except BadFile as error:
            return [f"{name}: {error}"]
        except OSError as error:
            return [f"{name}: cannot be read ({error.strerror})"]
        problems = []
        for tensor, stored in found.items():
            if tensor in self._stored:
                problems.append(f"{name}: {tensor} is in {self._stored[tensor][0].name} too")
            elif wanted is not None and tensor not in wanted:
                problems.append(f"{name}: {tensor} is not in the index")
            elif wanted is not None and wanted[tensor] != name:
                problems.append(f"{name}: the index says that {tensor} is in {wanted[tensor]}")
            else:
                self._stored[tensor] = (file, stored)
        return problems

    def files(self) -> list[Path]:
        return sorted({file for file, _ in self._stored.values()})

    def file_of(self, name: str) -> str:
        return self._stored[name][0].name

    def read(self, name: str, first: int, out: memoryview) -> None:
        file, stored = self._stored[name]
        try:
            read_at(self.handle(file), stored.offset + first * size_of(stored.dtype), out)
        except OSError as error:
            raise cannot_read(file, error) from error


class BinSource(Source):
    """`pytorch_model.bin`: pickles, opened only as far as tensors go (`weights_only=True`)."""

    kind = "hf"

    def __init__(self, path: Path) -> None:
        import torch

        super().__init__(path)
        self._files = sorted(path.glob("pytorch_model*.bin"))
        self._held: dict[str, Any] = {}
        for file in self._files:
            try:
                found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
                assert all(isinstance(value, torch.Tensor) for value in dict(found).values())
            except Exception as error:
                said = str(error).splitlines()[0] if str(error) else "it holds more than tensors"
                raise TrntError(
                    f"{file} is refused: {said}",
                    "convert it to safetensors where you trust it: AutoModelForCausalLM...save_pretrained(FOLDER)",
                ) from None
            refuse(path, [f"{file.name}: {name} is in another file too" for name in found if name in self._held], AGAIN)
            self._held |= found
        self.tensors = {name: Info(code_of(tensor.dtype), tuple(tensor.shape)) for name, tensor in self._held.items()}

    def files(self) -> list[Path]:
        return self._files

    def read(self, name: str, first: int, out: memoryview) -> None:
        import torch

        tensor = self._held[name].contiguous().reshape(-1)
        count = len(out) // tensor.element_size()
        if count:
            torch.frombuffer(out, dtype=tensor.dtype).copy_(tensor[first : first + count])


def is_hf(path: Path) -> bool:
    """Whether a folder holds Hugging Face weights."""
    return (path / INDEX).is_file() or any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin"))


def open_hf(path: Path) -> Source:
    """Open a Hugging Face folder. Raises TrntError with everything that is wrong with its files."""
    if (path / INDEX).is_file() or any(path.glob("*.safetensors")):
        return HfSource(path)
    return BinSource(path)
