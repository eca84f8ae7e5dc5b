"""The table of dtypes is torch's and safetensors' own."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import _SIZE, _TYPES

from trnt.checkpoint import dtypes


def test_codes_names_and_sizes_are_the_library_s() -> None:
    for code in dtypes.DTYPES:
        dtype = dtypes.torch_dtype(code)
        if code != "F8_E8M0":  # the library reads it, and its table of this version does not name it
            assert _TYPES[code] == dtype
        assert dtypes.size_of(code) == _SIZE[dtype] == dtype.itemsize
        assert dtypes.code_of(dtype) == code


def test_only_floating_point_weights_are_cast() -> None:
    assert dtypes.cast_to("F32", "BF16") == "BF16"
    assert dtypes.cast_to("I64", "BF16") == "I64"
    assert dtypes.cast_to("F8_E4M3", "BF16") == "F8_E4M3"
    assert dtypes.cast_to("F16", None) == "F16"
    with pytest.raises(KeyError):
        dtypes.code_of(torch.quint8)
