"""fp32 matrix products on CPU by the faster of torch's two libraries.

`torch.mm` calls MKL; oneDNN, which torch carries as well, is faster where one matrix is a large weight: measured on 2
cores of an AMD EPYC by 1.1 to 1.6 times for weights of 768 x 2048 and 16 to 128 rows, and by 1.1 to 2 times for blocks
of a 151,936 x 2048 head (benchmarks/matmul_cpu.py). Results are fp32 sums in another order.
"""

from __future__ import annotations

import torch

LEAST = 1 << 18  # elements of the weight; below, oneDNN's call costs more than it saves
FEW = 16  # rows; up to here MKL takes W x^T in three quarters of the time of x W^T, a weight of 768 x 256 cold
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def fast(weight: torch.Tensor) -> bool:
    """Whether oneDNN takes products with this weight."""
    return weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.numel() >= LEAST and ONEDNN


_LIBRARY = torch.library.Library("trnt", "FRAGMENT")
_LIBRARY.define("onednn_product(Tensor x, Tensor weight) -> Tensor")


def _product(x_MK: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x_MK, weight_NK, None, "none", [], "")


def _fake(x_MK: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    return x_MK.new_empty(x_MK.shape[0], weight_NK.shape[0])


_LIBRARY.impl("onednn_product", _product, "CPU")
_LIBRARY.impl("onednn_product", _fake, "Meta")


def _onednn(x_MK: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_compiling():
        return torch.ops.trnt.onednn_product(x_MK, weight_NK)
    return _product(x_MK, weight_NK)


def times_transposed(x_MK: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    """x W^T, (M, N)."""
    if fast(weight_NK):
        return _onednn(x_MK, weight_NK)
    if len(x_MK) <= FEW:
        return torch.mm(weight_NK, x_MK.T).T
    return torch.mm(x_MK, weight_NK.T)


def times(x_MK: torch.Tensor, weight_KN: torch.Tensor) -> torch.Tensor:
    """x W, (M, N)."""
    if fast(weight_KN):
        return _onednn(x_MK, weight_KN.T)
    return torch.mm(x_MK, weight_KN)


def transposed_times(a_TM: torch.Tensor, b_TN: torch.Tensor) -> torch.Tensor:
    """a^T b, (M, N): a weight's gradient. MKL is as fast unless there are many tokens and a wide result."""
    if len(a_TM) >= 256 and b_TN.shape[1] >= 1024 and fast(a_TM):
        return _onednn(a_TM.T, b_TN.T)
    return torch.mm(a_TM.T, b_TN)
