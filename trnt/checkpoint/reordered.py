"""A checkpoint read as if its rotary rows lay in the other format's order, piece by piece.

Hugging Face rotates the first half of a head against its second, torchtitan's complex RoPE neighbours against each
other: in a head of size H, native row 2 i + p is Hub row p H/2 + i (`permute` of Meta's convert_llama_weights_to_hf).
Only rows of one head change places, so a head's rows are read together and handed out in the other order.
"""

from __future__ import annotations

from typing import Any

from trnt.checkpoint import mapping
from trnt.checkpoint.dtypes import size_of
from trnt.checkpoint.source import PIECE, Source
from trnt.checkpoint.transposed import transposed
from trnt.checkpoint.wrapped import Wrapped
from trnt.models.registry import ModelEntry


class Reordered(Wrapped):
    """`source`, with the rows of some tensors in the other order. heads: tensor -> rows of one head."""

    def __init__(self, source: Source, heads: dict[str, int]) -> None:
        super().__init__(source, source.tensors)
        self.heads = heads

    def read(self, name: str, first: int, out: memoryview) -> None:
        """Fill `out` with a stretch of the tensor in the other order."""
        rows = self.heads.get(name)
        if rows is None:
            self.source.read(name, first, out)
            return
        info = self.tensors[name]
        row = info.nbytes // info.shape[0]
        begin = first * size_of(info.dtype)
        head = rows * row
        for number in range(begin // head, -(-(begin + len(out)) // head)):
            low, high = max(begin, number * head), min(begin + len(out), (number + 1) * head)
            self._part(name, number * head, rows, row, low - number * head, out[low - begin : high - begin])

    def _part(self, name: str, at: int, rows: int, row: int, low: int, out: memoryview) -> None:
        """Bytes `low` on of one head in the other order; the head begins at byte `at`. Read in columns of a piece."""
        import numpy as np

        value = size_of(self.tensors[name].dtype)
        if rows * row <= PIECE:
            buffer = bytearray(rows * row)
            self.source.read(name, at // value, memoryview(buffer))
            found = np.frombuffer(buffer, np.uint8).reshape(rows, row)
            turned = self._turn(found).reshape(-1)
            out[:] = turned[low : low + len(out)].data
            return
        order = self._turn(np.arange(rows)[:, None])[:, 0]
        done = 0
        while done < len(out):
            number, inside = divmod(low + done, row)
            length = min(row - inside, len(out) - done)
            self.source.read(name, (at + int(order[number]) * row + inside) // value, out[done : done + length])
            done += length

    def _turn(self, head: Any) -> Any:
        """One head's rows (H, ...), a NumPy array, in the other order."""
        halves = (2, len(head) // 2) if self.kind == "hf" else (len(head) // 2, 2)
        return head.reshape(*halves, -1).swapaxes(0, 1).reshape(len(head), -1)


def ordered(source: Source, entry: ModelEntry, kind: str) -> Source:
    """`source` as a folder of `kind` orders its values; the source itself where nothing differs."""
    if source.kind == kind:
        return source
    where = mapping.places(entry, source.kind, source.tensors)
    heads = {tensor: link.head for link, (tensor, _) in where.items() if link.head}
    turned = {tensor for link, (tensor, _) in where.items() if link.turned}
    return transposed(Reordered(source, heads) if heads else source, turned)
