"""The cases of disk and data: a checkpoint written and read, batches of text."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from trnt.benching.sizes import Sizes
from trnt.benching.work import Case, Outputs, Work, tile
from trnt.checkpoint.written import check_room, sync_folder
from trnt.data.loader import TextDataLoader
from trnt.data.tokens import prepare
from trnt.errors import UsageError

COLUMNS = 4096
SEQ_LEN = 512
ROWS = 64  # of each batch


def weights(sizes: Sizes, device: str, dtype: torch.dtype) -> SimpleNamespace:
    """A checkpoint of `tokens` rows of 4,096 numbers in four tensors, in a temporary folder that goes with it."""
    rows = -(-sizes.tokens // 4)
    tensors = {f"w{i}": tile((rows, COLUMNS), dtype, "cpu", 1.0, i) for i in range(4)}
    scratch = tempfile.TemporaryDirectory(prefix="trnt-bench-")
    check_room(Path(scratch.name), 2 * sum(t.nbytes for t in tensors.values()))
    return SimpleNamespace(tensors=tensors, scratch=scratch, path=Path(scratch.name) / "step-1")


def save(given: SimpleNamespace) -> None:
    """As a training run saves: torch DCP, then down to the disk."""
    dcp.save(given.tensors, checkpoint_id=str(given.path), no_dist=True)
    sync_folder(given.path)


def load(given: SimpleNamespace, into: dict[str, torch.Tensor]) -> None:
    dcp.load(into, checkpoint_id=str(given.path), no_dist=True)


def empty(given: SimpleNamespace) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(tensor, float("nan")) for name, tensor in given.tensors.items()}


def write(given: SimpleNamespace) -> Work:
    def outputs() -> Outputs:
        found = empty(given)
        load(given, found)
        return found

    return Work(lambda: save(given), outputs, lambda: shutil.rmtree(given.path, ignore_errors=True))


def read(given: SimpleNamespace) -> Work:
    """From the page cache, where it was just written: what reading costs beside the disk."""
    save(given)
    found = empty(given)
    return Work(lambda: load(given, found), lambda: found)


def text(sizes: Sizes, device: str, dtype: torch.dtype) -> SimpleNamespace:
    """A loader over the bundled novels, rows of 512 tokens in the order of the text."""
    found = prepare(None, None)
    count = whole_batches(sizes)
    if count * ROWS * SEQ_LEN > found.num_tokens:
        raise UsageError(
            f"--tokens {sizes.tokens}: the bundled text has {found.num_tokens:,}", "take fewer, or leave data out"
        )
    return SimpleNamespace(set=found, batches=count)


def whole_batches(sizes: Sizes) -> int:
    return max(1, sizes.tokens // (SEQ_LEN * ROWS))


def loader(given: SimpleNamespace) -> Any:
    config = TextDataLoader.Config(token_cache=given.set.path, shuffle=False)
    return TextDataLoader(config, dp_world_size=1, dp_rank=0, seq_len=SEQ_LEN, local_batch_size=ROWS)


def batches(given: SimpleNamespace) -> Work:
    held: list[torch.Tensor] = []
    source = loader(given)

    def run() -> None:
        source.rows_seen = 0
        rows = iter(source)
        held[:] = [next(rows)[0]["input"] for _ in range(given.batches)]

    return Work(run, lambda: {"input": torch.cat(held).flatten()})


def first_tokens(given: SimpleNamespace) -> Outputs:
    """The token cache itself: the rows that have nothing to predict are rare, and none lies at the beginning."""
    count = given.batches * ROWS * SEQ_LEN
    return {"input": torch.from_numpy(given.set.tokens()[:count].astype("int64"))}


def stored(sizes: Sizes, size: int) -> float:
    """Bytes of the checkpoint's tensors."""
    return 4.0 * -(-sizes.tokens // 4) * COLUMNS * size


CASES = {
    "checkpoint-write": Case(
        inputs=weights,
        expected=lambda given: given.tensors,
        kernels={"torch": write},
        flops=lambda s: 0.0,
        moved=stored,
        terms=lambda s: 1,
        exact=True,
    ),
    "checkpoint-read": Case(
        inputs=weights,
        expected=lambda given: given.tensors,
        kernels={"torch": read},
        flops=lambda s: 0.0,
        moved=stored,
        terms=lambda s: 1,
        exact=True,
    ),
    "data": Case(
        inputs=text,
        expected=first_tokens,
        kernels={"torch": batches},
        flops=lambda s: 0.0,
        # 4 bytes of the cache read; inputs, labels and positions written as int64
        moved=lambda s, size: 28.0 * whole_batches(s) * SEQ_LEN * ROWS,
        terms=lambda s: 1,
        exact=True,
    ),
}
