"""One global order of rows, exact positions, exact resume."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trnt.data.loader import TextDataLoader, count_rows
from trnt.data.tokens import TokenSet, check_length, prepare
from trnt.errors import TrntError, UsageError


def token_set(folder: Path, lengths: list[int]) -> TokenSet:
    """A cache of documents with the given lengths, ids counting up from 1, each ended by 0."""
    import json

    folder.mkdir(exist_ok=True)
    ids: list[int] = []
    starts = []
    for length in lengths:
        starts.append(len(ids))
        ids += [*range(len(ids) + 1, len(ids) + length), 0]
    np.asarray(ids, "<u4").tofile(folder / "tokens.bin")
    np.asarray(starts, "<i8").tofile(folder / "documents.bin")
    meta = {"fingerprint": "f", "num_tokens": len(ids), "num_documents": len(lengths), "skipped_documents": 0}
    meta |= {"max_id": max(ids), "eos_id": 0, "tokenizer_path": "", "data": ""}
    (folder / "meta.json").write_text(json.dumps(meta))
    return TokenSet(path=str(folder), **meta)  # type: ignore[arg-type]


def loader(made: TokenSet, seq_len: int = 8, batch: int = 2, dp: tuple[int, int] = (1, 0), **changes: Any) -> Any:
    config = TextDataLoader.Config(token_cache=made.path, **changes)
    return config.build(dp_world_size=dp[0], dp_rank=dp[1], seq_len=seq_len, local_batch_size=batch)


def take(source: Any, count: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    batches = itertools.islice(iter(source), count)
    return [(inputs["input"], inputs["positions"], labels) for inputs, labels in batches]


def equal(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(
        torch.equal(a, b) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True)
    )


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=12).filter(lambda x: max(x) > 1),
    seq_len=st.integers(1, 16),
)
@settings(max_examples=60, deadline=None)
def test_every_row_keeps_the_packing_s_promises(tmp_path_factory: Any, lengths: list[int], seq_len: int) -> None:
    made = token_set(tmp_path_factory.mktemp("set"), lengths)
    stream = made.tokens().tolist()
    starts = set(made.starts().tolist())
    source = loader(made, seq_len, 1, shuffle=False, infinite=False)
    rows = take(source, 10**6)
    assert len(rows) + source.skipped_rows == count_rows(len(stream), seq_len)
    targets = 0
    for index, (inputs, positions, labels) in zip(source.usable, rows, strict=True):
        assert inputs.shape == positions.shape == labels.shape == (1, seq_len)
        assert positions[0, 0] == 0
        assert (labels != -100).any()
        for offset in range(seq_len):
            place = int(index) * seq_len + offset
            inside = place < len(stream)
            assert inputs[0, offset] == (stream[place] if inside else made.eos_id)
            begins = offset == 0 or place in starts or place == len(stream)
            assert positions[0, offset] == (0 if begins else positions[0, offset - 1] + 1)
            last = place + 1 in starts or place + 1 >= len(stream)
            assert labels[0, offset] == (-100 if last else stream[place + 1])
        targets += int((labels != -100).sum())
    # every token of a document but its first is a target exactly once
    assert targets == sum(length - 1 for length in lengths)


@pytest.fixture
def made(tmp_path: Path) -> TokenSet:
    return token_set(tmp_path / "set", [30, 5, 1, 17, 44, 9, 60])


def test_every_token_is_an_input_once_per_epoch(made: TokenSet) -> None:
    rows = take(loader(made, batch=1, infinite=False), 10**6)
    seen = torch.cat([inputs[0] for inputs, _, _ in rows])
    counts = torch.bincount(seen[seen > 0])
    everything = torch.from_numpy(made.tokens().astype(np.int64))
    assert torch.equal(counts[1:].nonzero().flatten() + 1, everything[everything > 0].sort().values)
    assert (counts[counts > 0] == 1).all()


@pytest.mark.parametrize("world", [2, 4])
def test_the_global_order_does_not_depend_on_the_number_of_processes(made: TokenSet, world: int) -> None:
    whole = take(loader(made, batch=4), 20)
    parts = [take(loader(made, batch=4 // world, dp=(world, rank)), 20) for rank in range(world)]
    together = [tuple(torch.cat(tensors) for tensors in zip(*rows, strict=True)) for rows in zip(*parts, strict=True)]
    assert equal(whole, together)


def test_epochs_differ_and_repeat_with_the_seed(made: TokenSet) -> None:
    per_epoch = len(loader(made).usable)
    one = take(loader(made, batch=1), 2 * per_epoch)
    assert equal(one, take(loader(made, batch=1), 2 * per_epoch))
    assert not equal(one[:per_epoch], one[per_epoch:])
    assert not equal(one, take(loader(made, batch=1, seed=1), 2 * per_epoch))
    order = [int(row[0][0, 0]) for row in one]
    assert sorted(order[:per_epoch]) == sorted(order[per_epoch:])


@pytest.mark.parametrize("worlds", [(1, 1, 1), (1, 2, 4), (4, 2, 1)])
def test_three_parts_equal_the_whole_at_any_number_of_processes(made: TokenSet, worlds: tuple[int, ...]) -> None:
    whole = take(loader(made, batch=4), 36)  # more than one epoch
    state: dict[str, Any] = {}
    found = []
    for world in worlds:
        ranks = [loader(made, batch=4 // world, dp=(world, rank)) for rank in range(world)]
        for rank in ranks:
            rank.load_state_dict(state)
        parts = [take(rank, 12) for rank in ranks]
        found += [tuple(torch.cat(t) for t in zip(*rows, strict=True)) for rows in zip(*parts, strict=True)]
        states = [rank.state_dict() for rank in ranks]
        assert all(other == states[0] for other in states)
        state = states[0]
    assert equal(whole, found)


def test_a_position_in_other_data_or_another_order_is_refused(made: TokenSet) -> None:
    state = loader(made).state_dict()
    for changes in ({"fingerprint": "g"}, {"seq_len": 9}, {"seed": 7}, {"shuffle": False}):
        with pytest.raises(TrntError) as caught:
            loader(made).load_state_dict(state | changes)
        assert "resume with the same" in caught.value.fix


def test_a_finite_loader_drops_the_last_incomplete_batch(made: TokenSet) -> None:
    per_epoch = len(loader(made).usable)
    assert len(take(loader(made, batch=4, infinite=False), 10**6)) == per_epoch // 4


def test_data_that_is_too_short_is_refused(tmp_path: Path) -> None:
    short = token_set(tmp_path / "s", [6])
    check_length(short, 6)
    with pytest.raises(UsageError, match="longer than the data"):
        check_length(short, 7)
    with pytest.raises(TrntError, match="no row"):
        loader(token_set(tmp_path / "ones", [1, 1, 1]))


def test_the_bundled_sample_loads() -> None:
    (inputs, positions, labels) = take(loader(prepare(None, None), 256, 4), 1)[0]
    assert inputs.shape == (4, 256)
    assert int(inputs.max()) < 4096
    assert torch.equal(inputs[:, 1:][labels[:, :-1] != -100], labels[:, :-1][labels[:, :-1] != -100])
    assert (positions[:, 0] == 0).all()
