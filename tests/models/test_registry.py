"""Names users type."""

from __future__ import annotations

import pytest

from trnt.errors import UsageError
from trnt.models import registry


def test_the_issue_s_names_are_all_there() -> None:
    qwen = "qwen3-tiny qwen3-tiny-moe qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-14b qwen3-32b qwen3-30b-a3b"
    llama = (
        "llama3-tiny llama3-8b llama3-70b llama3.1-8b llama3.1-70b llama3.1-405b llama3.2-1b llama3.2-3b llama3.3-70b"
    )
    deepseek = "deepseek-v3-tiny deepseek-v3-16b deepseek-v3-236b deepseek-v3-671b"
    gpt = "gpt-oss-tiny gpt-oss-20b gpt-oss-120b"
    expected = f"{qwen} qwen3-235b-a22b {llama} {deepseek} {gpt}"
    assert set(expected.split()) == set(registry.names())


def test_hub_ids_are_names_too() -> None:
    assert registry.get("Qwen/Qwen3-30B-A3B") == registry.get("qwen3-30b-a3b")


def test_an_unknown_name_gets_the_nearest_or_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        registry.get("qwen3-30b")
    assert "qwen3-30b-a3b" in caught.value.fix
    with pytest.raises(UsageError) as caught:
        registry.get("zzz")
    assert caught.value.fix == "'trnt models' lists them"


def test_every_family_keeps_the_protocol() -> None:
    functions = (
        "dimensions",
        "cut",
        "count_params",
        "flops_per_token",
        "titan_spec",
        "hf_config",
        "size_from_hf_config",
    )
    for family in registry.FAMILIES.values():
        assert family.SIZES
        assert family.TABLE
        assert all(callable(getattr(family, name)) for name in functions)
