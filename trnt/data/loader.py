"""Batches in one global order of rows, whatever the number of processes, with a position that is saved exactly.

The token stream is cut in rows of L input tokens, stride L: every token is an input once per epoch. A row's label is
the next token of the stream; the last token of a document predicts nothing (-100), and positions restart at 0 at each
document and at each row, which is what keeps packed documents apart in attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trnt import device

device.ensure()

from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX

from trnt.data.tokens import TokenSet
from trnt.errors import TrntError

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


def count_rows(num_tokens: int, seq_len: int) -> int:
    """Rows of an epoch: the last, shorter one is padded, not dropped."""
    return -(-num_tokens // seq_len)


class TextDataLoader(BaseDataLoader):
    """torchtitan's loader seam over a token cache."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        token_cache: str = ""
        """Folder of a `TokenSet`."""
        seed: int = 0
        """Seed of the order of rows; epoch e uses (seed, e)."""
        shuffle: bool = True
        """Another order each epoch; else the order of the stream."""
        infinite: bool = True
        """Begin the next epoch when one ends; else stop, dropping a last incomplete global batch."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        tokenizer: Any = None,
        snapshot_every_n_steps: int | None = None,
    ) -> None:
        del tokenizer, snapshot_every_n_steps
        import json
        from pathlib import Path

        meta = json.loads((Path(config.token_cache) / "meta.json").read_text())
        self.set = TokenSet(path=config.token_cache, **meta)
        self.config, self.seq_len, self.local_batch_size = config, seq_len, local_batch_size
        self.dp_world_size, self.dp_rank = dp_world_size, dp_rank
        self.tokens = self.set.tokens()
        self.is_start = np.zeros(self.set.num_tokens + 1, dtype=bool)
        self.is_start[self.set.starts()] = True
        self.is_start[-1] = True
        self.rows_seen = 0
        self.usable = self._usable_rows()
        if not len(self.usable):
            raise TrntError("no row of the data has a token to predict", "use longer documents")

    def _usable_rows(self) -> np.ndarray:
        """Rows with at least one target: a row made only of documents of one token would have none."""
        targets = ~self.is_start[1:]
        padded = np.zeros(count_rows(self.set.num_tokens, self.seq_len) * self.seq_len, dtype=bool)
        padded[: len(targets)] = targets
        return np.flatnonzero(padded.reshape(-1, self.seq_len).any(axis=1))

    @property
    def skipped_rows(self) -> int:
        """Rows of an epoch that are never handed out, because nothing in them is predicted."""
        return count_rows(self.set.num_tokens, self.seq_len) - len(self.usable)

    def order(self, epoch: int) -> np.ndarray:
        """The rows of one epoch, in the order they are handed out; the same on every process and machine."""
        if not self.config.shuffle:
            return self.usable
        generator = np.random.Generator(np.random.Philox(seed=(self.config.seed, epoch)))
        return generator.permutation(self.usable)

    def row(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs, positions and labels of one row, each (L,) int64."""
        begin = index * self.seq_len
        end = min(begin + self.seq_len, self.set.num_tokens)
        length = end - begin
        inputs = np.full(self.seq_len, self.set.eos_id, dtype=np.int64)
        labels = np.full(self.seq_len, IGNORE_INDEX, dtype=np.int64)
        inputs[:length] = self.tokens[begin:end]
        following = np.full(length, IGNORE_INDEX, dtype=np.int64)
        next_tokens = self.tokens[begin + 1 : end + 1]
        following[: len(next_tokens)] = next_tokens
        labels[:length] = np.where(self.is_start[begin + 1 : end + 1], IGNORE_INDEX, following)
        starts = np.zeros(self.seq_len, dtype=bool)
        starts[:length] = self.is_start[begin:end]
        starts[0] = True
        if length < self.seq_len:
            starts[length] = True  # the padding is a document of its own
        where = np.arange(self.seq_len, dtype=np.int64)
        positions = where - np.maximum.accumulate(np.where(starts, where, 0))
        return inputs, positions, labels

    def __iter__(self) -> Iterator[Batch]:
        """Go on from the position; it counts a batch once that batch is handed out."""
        per_epoch = len(self.usable)
        global_rows = self.local_batch_size * self.dp_world_size
        epoch, order = -1, self.usable
        while True:
            first = self.rows_seen + self.dp_rank * self.local_batch_size
            if not self.config.infinite and self.rows_seen + global_rows > per_epoch:
                return
            rows = []
            for number in range(first, first + self.local_batch_size):
                if number // per_epoch != epoch:
                    epoch = number // per_epoch
                    order = self.order(epoch)
                rows.append(self.row(int(order[number % per_epoch])))
            inputs, positions, labels = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
            self.rows_seen += global_rows
            yield {"input": inputs, "positions": positions}, labels

    def state_dict(self) -> dict[str, Any]:
        """The position in rows over all processes, and what it is a position in."""
        return {
            "rows_seen": self.rows_seen,
            "fingerprint": self.set.fingerprint,
            "seq_len": self.seq_len,
            "seed": self.config.seed,
            "shuffle": self.config.shuffle,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a saved position was. Raises TrntError when it is a position in other data or another order."""
        if not state_dict:
            return
        mine = self.state_dict()
        for key in ("fingerprint", "seq_len", "seed", "shuffle"):
            if state_dict.get(key, mine[key]) != mine[key]:
                name = {"fingerprint": "data or tokenizer"}.get(key, key)
                raise TrntError(
                    f"the checkpoint was trained with another {name} ({state_dict[key]}, now {mine[key]})",
                    "resume with the same --data, --tokenizer, --seq-len and --seed, or start anew with --resume never",
                )
        self.rows_seen = int(state_dict["rows_seen"])
