"""Rows of the tables are well formed."""

from __future__ import annotations

from trnt.models import registry


def test_rows_use_only_the_letters_and_counters_that_exist() -> None:
    for family in registry.FAMILIES.values():
        for size in family.SIZES.values():
            letters = family.dimensions(size)
            for row in family.TABLE:
                assert set(row.shape) <= letters.keys()
                assert ("{layer}" in row.hf) == ("{layer}" in row.native)
                assert ("{expert}" in row.hf) == (row.transform == "experts")


def test_names_are_unique_on_both_sides() -> None:
    for family in registry.FAMILIES.values():
        for kind in ("dense", "moe"):
            rows = [row for row in family.TABLE if row.when in ("always", kind)]
            assert len({row.hf for row in rows}) == len({row.native for row in rows}) == len(rows)
