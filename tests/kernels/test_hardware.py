"""The table of cores: its aliases, and that the sizes agree with one another."""

from __future__ import annotations

import pytest

from trnt.kernels.hardware import ALIASES, CORES, core


@pytest.mark.parametrize("name", CORES)
def test_what_is_usable_is_less_than_what_there_is(name: str) -> None:
    one = CORES[name]
    assert 0.9 * one.sbuf_bytes < one.sbuf_usable < one.sbuf_bytes
    # 2 MiB of PSUM, and 24, 28 and 32 MiB of state buffer, over all partitions.
    assert one.psum_banks * one.psum_bank_bytes * one.partitions == 2 * 1024**2
    assert one.sbuf_bytes * one.partitions == {"trn1": 24, "trn2": 28, "trn3": 32}[name] * 1024**2


def test_the_vendor_s_kernel_s_share_of_trn2() -> None:
    assert core("trn2").sbuf_usable == 212_464


def test_aliases() -> None:
    assert {core(alias).name for alias in ALIASES} == set(CORES)
    with pytest.raises(KeyError):
        core("trn9")
