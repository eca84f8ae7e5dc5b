"""A row says what was measured; a wrong result is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trnt.benching import run
from trnt.errors import TrntError
from trnt.models import registry

ENTRY = registry.get("qwen3-tiny-moe")


def rows(*pairs: tuple[str, str], tokens: int = 32) -> list[dict[str, Any]]:
    return list(run.results(ENTRY, list(pairs), "cpu", "fp32", tokens, 0.01))


def test_a_row() -> None:
    forward, backward = rows(("experts-forward", "cpu"), ("experts-backward", "torch"))
    assert forward["correct"]
    assert backward["correct"]
    assert backward["flops"] == 2 * forward["flops"]
    assert forward["flops_per_s"] == forward["flops"] / forward["seconds"]
    assert forward["bytes_per_s"] == forward["bytes"] / forward["seconds"]
    least = {"products": "flops", "memory": "bytes"}[forward["bound"]]
    assert forward["of_bound"] == pytest.approx(forward[f"{least}_per_s"] / forward[f"peak_{least}_per_s"])


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = run.case_of("route")

    def wrong(given: Any) -> Any:
        work = case.kernels["torch"](given)
        return replace(work, outputs=lambda: {**work.outputs(), "affinity": work.outputs()["affinity"] * 1.001})

    monkeypatch.setattr(run, "case_of", lambda _: replace(case, kernels={"torch": wrong}))
    (row,) = rows(("route", "torch"))
    assert not row["correct"]
    assert row["max_error"] == pytest.approx(0.001, rel=0.01)


def test_the_machine_is_named() -> None:
    found = run.machine("cpu")
    assert found["device"] == "cpu"
    assert found["threads"] >= 1
    assert found["cpu"]


def test_too_little_memory_is_said_with_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = registry.get("qwen3-30b-a3b").cut(None, 64)
    run.check_memory(entry, ["experts-forward"], 512)
    monkeypatch.setattr("trnt.host_memory.free_bytes", lambda: 2 << 30)
    with pytest.raises(TrntError, match=r"experts-backward .* takes about .* GiB, 2.0 GiB are free") as caught:
        run.check_memory(entry, ["route", "experts-backward"], None)
    fitting = int(caught.value.fix.split()[2].rstrip(","))
    run.check_memory(registry.get("qwen3-30b-a3b").cut(None, fitting), ["experts-backward"], None)
    with pytest.raises(TrntError) as caught:
        run.check_memory(entry, ["attention"], 65536)
    assert "--tokens 32768" in caught.value.fix
