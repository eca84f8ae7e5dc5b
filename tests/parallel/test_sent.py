"""The formula of what is sent, by hand for small cases; test_layouts.py holds every layout to what is counted."""

from __future__ import annotations

import pytest

from trnt.checkpoint.mapping import native_shapes
from trnt.models import registry
from trnt.parallel import sent
from trnt.parallel.degrees import Degrees

TINY = registry.get("qwen3-tiny")
# of one layer: four of attention, three of the feed-forward, two norms of the hidden size, two of a head
LAYER = 128 * (128 + 64 + 64 + 128) + 3 * 128 * 384 + 2 * 128 + 2 * 32
EMBEDDING = 4096 * 128


def found(
    name: str, degrees: Degrees, rows: int = 1, **options: int | bool | str
) -> dict[tuple[str, str], tuple[int, int]]:
    entry = registry.get(name)
    terms = sent.sent(entry.size, native_shapes(entry), sent.Setting(degrees, 64, rows, **options))  # type: ignore[arg-type]
    return {key: (count.calls, count.sent_bytes) for key, count in sent.total(terms).items()}


def test_nothing_on_one_process() -> None:
    assert found("qwen3-tiny-moe", Degrees()) == {}


def test_fsdp2_of_a_tied_model() -> None:
    """Layers twice, the tied end once; its gradient once for the head and once for the embedding."""
    share = (2 * LAYER + EMBEDDING + 128) * 4 // 4
    assert found("qwen3-tiny", Degrees(dp_shard=4)) == {
        ("fsdp", "all-gather"): (5, 3 * (2 * 2 * LAYER + EMBEDDING + 128)),
        ("fsdp", "reduce-scatter"): (4, 3 * (share + EMBEDDING)),
    }


def test_half_precision_gathers_half() -> None:
    (whole, half) = (
        found("qwen3-tiny", Degrees(dp_shard=2), gathered_bytes=n)["fsdp", "all-gather"][1] for n in (4, 2)
    )
    assert whole == 2 * half


def test_tensor_parallelism_of_a_row() -> None:
    """Per layer 2 + 2 forward and backward, 1 + 1 at each end: 5 + 5 gathers of half of 64 x 128 numbers."""
    counted = found("llama3-tiny", Degrees(tp=2))
    assert counted["tp", "all-gather"] == counted["tp", "reduce-scatter"] == (10, 10 * 64 * 128 * 4 // 2)
    # three sums of a row's loss, five norms
    assert counted["tp", "all-reduce"] == (8, 3 * 64 * 4 + 5 * 128 * 4)


def test_experts_exchange_their_tokens() -> None:
    """Four layers: 64 tokens to four experts of 256 numbers each, four ways, and 16 counts of eight bytes once."""
    calls, sent_bytes = found("qwen3-tiny-moe", Degrees(dp_shard=4, ep=4))["ep", "all-to-all"]
    assert (calls, sent_bytes) == (4 * 5, 4 * (4 * 64 * 4 * 256 * 4 + 16 * 8) * 3 // 4)


def test_a_share_of_few_rows_is_padded() -> None:
    """Six processes share 128 rows: 22 each. More processes than experts share the experts' width."""
    settings = {n: sent.Setting(Degrees(dp_shard=n), 64, 1) for n in (6, 32)}
    assert sent.part("norm.weight", (128,), settings[6], TINY.size) == ("fsdp", 6, 22, 128)
    moe = registry.get("qwen3-tiny-moe")
    name = "layers.0.moe.routed_experts.inner_experts.w1_EFD"
    assert sent.part(name, (16, 192, 256), settings[32], moe.size) == ("fsdp", 32, 16 * 6 * 256, 16 * 192 * 256)


def test_stages_are_runs_of_layers() -> None:
    held = {f"layers.{layer}.wo.weight": (1,) for layer in (0, 1, 4, 5, 7)}
    assert sent.stages(held) == [[0, 1], [4, 5], [7]]


def test_what_has_no_formula_says_so() -> None:
    with pytest.raises(ValueError, match="sequence parallelism"):
        found("llama3-tiny", Degrees(tp=2), sequence_parallel=False)
