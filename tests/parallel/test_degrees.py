"""Degrees: what fills what is left, and what cannot be, with the nearest that can."""

from __future__ import annotations

from typing import Any

import pytest

from trnt.errors import UsageError
from trnt.models import registry
from trnt.parallel.degrees import FLAGS, STAGES, Degrees, check, check_batch, nearest_divisor, resolve


def asked(**given: int) -> tuple[dict[str, int], set[str]]:
    usual = {**dict.fromkeys(FLAGS, 1), "dp_shard": -1, "ep": 1}
    return {**usual, **given}, set(given)


@pytest.mark.parametrize(
    ("given", "world", "experts", "found"),
    [
        ({}, 1, 0, Degrees()),
        ({}, 8, 0, Degrees(dp_shard=8)),
        ({"tp": 2}, 8, 0, Degrees(dp_shard=4, tp=2)),
        ({"tp": -1}, 8, 0, Degrees(tp=8)),
        ({"dp_replicate": -1, "tp": 2}, 8, 0, Degrees(dp_replicate=4, tp=2)),
        ({"dp_replicate": 2, "pp": 2}, 8, 0, Degrees(dp_replicate=2, dp_shard=2, pp=2)),
        ({"dp_shard": 2, "cp": 2, "pp": -1}, 8, 0, Degrees(dp_shard=2, cp=2, pp=2)),
        ({"ep": -1}, 8, 12, Degrees(dp_shard=8, ep=4)),
        ({"ep": -1}, 8, 0, Degrees(dp_shard=8)),
        ({"ep": 2, "tp": 2}, 2, 16, Degrees(tp=2, ep=2)),
    ],
)
def test_what_is_left_is_filled(given: dict[str, int], world: int, experts: int, found: Degrees) -> None:
    assert resolve(*asked(**given), world, experts) == found
    assert found.world_size == world


@pytest.mark.parametrize(
    ("given", "world", "cause", "fix"),
    [
        ({"tp": 3}, 8, "--tp 3 does not divide the 8 processes", "use --tp 2, or --nproc 3"),
        ({"tp": 4, "cp": 3}, 8, "--tp 4 x --cp 3 = 12 does not divide", "use --nproc 12"),
        ({"dp_shard": 2, "tp": 2}, 8, "--dp-shard 2 x --tp 2 = 4 leaves some of the 8 processes idle", "--nproc 4"),
        ({"dp_shard": -1, "tp": -1}, 8, "--dp-shard and --tp cannot both be what is left", "give one"),
        ({"tp": 16}, 8, "--tp 16 does not divide the 8 processes", "use --tp 8"),
    ],
)
def test_what_does_not_multiply_is_named(given: dict[str, int], world: int, cause: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(*asked(**given), world, 0)
    assert cause in caught.value.cause
    assert fix in caught.value.fix


USUAL = {"sequence_parallel": True, "seq_len": 64, "batch_size": 4, "global_batch_size": -1, "pp_schedule": "1F1B"}


@pytest.mark.parametrize(
    ("model", "degrees", "settings", "cause", "fix"),
    [
        ("qwen3-tiny", Degrees(tp=4), {}, "--tp 4 does not divide the 4 heads and 2 key-value heads", "--tp 2"),
        ("qwen3-tiny", Degrees(cp=8), {}, "--cp 8 does not divide the 4 heads", "--cp 4"),
        ("qwen3-tiny", Degrees(cp=2), {"seq_len": 66}, "--seq-len 66 cannot be cut", "--seq-len 68"),
        ("qwen3-tiny", Degrees(tp=2), {"seq_len": 65}, "--seq-len 65 cannot be cut", "--seq-len 66"),
        ("qwen3-tiny", Degrees(dp_shard=2, ep=2), {}, "--ep 2 needs experts", "leave --ep out"),
        ("qwen3-tiny-moe", Degrees(dp_shard=3, ep=3), {}, "--ep 3 does not divide both the 16 experts", "--ep 1"),
        ("qwen3-tiny-moe", Degrees(dp_shard=2, ep=4), {}, "dp-shard x cp x tp = 2", "--ep 2"),
        ("qwen3-tiny", Degrees(pp=2), {}, "--pp needs a head with weights of its own", "tie_word_embeddings false"),
        ("deepseek-v3-tiny", Degrees(pp=4), {}, "needs 4 layers, and there are 3", "--pp 3"),
        ("deepseek-v3-tiny", Degrees(pp=2), {"batch_size": 3}, "--batch-size 3 is cut in rows", "--batch-size 4"),
    ],
)
def test_what_cannot_be_split_is_named(
    model: str, degrees: Degrees, settings: dict[str, Any], cause: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check(degrees, registry.get(model).size, {**USUAL, **settings})
    assert cause in caught.value.cause
    assert fix in caught.value.fix


def test_a_step_is_whole_forward_passes_of_every_process() -> None:
    for degrees, rows, cause, fix in (
        (Degrees(dp_shard=2), 12, "--global-batch-size 12 is not a multiple", "--global-batch-size 16"),
        (Degrees(tp=2), 6, "--global-batch-size 6 is not a multiple of --batch-size 4", "--global-batch-size 8"),
    ):
        with pytest.raises(UsageError) as caught:
            check_batch(degrees, {**USUAL, "global_batch_size": rows})
        assert cause in caught.value.cause
        assert fix in caught.value.fix
    check_batch(Degrees(dp_replicate=2), {**USUAL, "global_batch_size": 16})
    check_batch(Degrees(dp_replicate=2), USUAL)


def test_what_can_be_split_passes() -> None:
    moe, gpt_oss = registry.get("qwen3-tiny-moe").size, registry.get("gpt-oss-tiny").size
    for size, degrees, settings in (
        (moe, Degrees(dp_shard=2, tp=4, ep=8), {}),
        (moe, Degrees(cp=8), {}),  # 4 key-value heads are repeated
        (gpt_oss, Degrees(pp=4), {}),
        (registry.get("qwen3-tiny").size, Degrees(tp=2), {"seq_len": 65, "sequence_parallel": False}),
    ):
        check(degrees, size, {**USUAL, **settings})
    for schedule, stages in STAGES.items():
        check(Degrees(pp=4 // stages), gpt_oss, {**USUAL, "pp_schedule": schedule})


def test_schedules_with_other_gradients_are_not_offered() -> None:
    size = registry.get("gpt-oss-tiny").size
    for schedule in ("ZBVZeroBubble", "InterleavedZeroBubble", "DualPipeV"):
        with pytest.raises(UsageError, match="other gradients"):
            check(Degrees(pp=2), size, {**USUAL, "pp_schedule": schedule})
    with pytest.raises(UsageError) as caught:
        check(Degrees(pp=4), size, {**USUAL, "pp_schedule": "Interleaved1F1B"})
    assert caught.value.fix == "use --pp 2"


def test_tensor_parallelism_stays_inside_a_chip() -> None:
    size = registry.get("qwen3-30b-a3b").size
    usual = {**USUAL, "seq_len": 4096}
    check(Degrees(tp=4), size, usual, chip_cores=4)
    with pytest.raises(UsageError) as caught:
        check(Degrees(tp=4), size, usual, chip_cores=2)
    assert caught.value.fix == "use --tp 2 or less"


def test_words_and_divisors() -> None:
    assert Degrees().describe() == ""
    assert Degrees(dp_shard=2, tp=2, ep=4).describe() == "dp-shard 2 x tp 2, ep 4"
    assert Degrees(dp_replicate=2, dp_shard=3).data == 6
    assert [nearest_divisor(12, n) for n in (1, 5, 7, 9, 100)] == [1, 4, 6, 6, 12]
