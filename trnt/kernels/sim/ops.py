"""The operators that instructions take as `op`, and what they compute in fp32.

The same objects are `nl.add`, `nl.exp` and so on: called in a kernel they are the experimental functions of
`nki.language`, which make a tile and issue the instruction (`language.py` sets how).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


class Op:
    """One operator. kind: binary, bitvec (integers, bit for bit) or activation (one argument, scalar engine)."""

    call: Callable[..., Any]

    def __init__(self, name: str, kind: str, compute: Callable[..., Any], *, reduce: Any = None) -> None:
        self.name, self.kind, self.compute, self.reduce = name, kind, compute, reduce

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __call__(self, *args: Any, **options: Any) -> Any:
        return Op.call(self, *args, **options)


def sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float32])(x)


def _tanh_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _compare(function: Any) -> Any:
    return lambda a, b: function(a, b).astype(np.float32)


BINARY = {
    "add": (np.add, np.add.reduce),
    "subtract": (np.subtract, None),
    "multiply": (np.multiply, np.multiply.reduce),
    "maximum": (np.maximum, np.maximum.reduce),
    "minimum": (np.minimum, np.minimum.reduce),
    "power": (np.power, None),
    "abs_max": (lambda a, b: np.where(np.abs(a) > np.abs(b), a, b), None),
    "abs_min": (lambda a, b: np.where(np.abs(a) < np.abs(b), a, b), None),
    "equal": (_compare(np.equal), None),
    "not_equal": (_compare(np.not_equal), None),
    "less": (_compare(np.less), None),
    "less_equal": (_compare(np.less_equal), None),
    "greater": (_compare(np.greater), None),
    "greater_equal": (_compare(np.greater_equal), None),
    "logical_and": (_compare(np.logical_and), None),
    "logical_or": (_compare(np.logical_or), None),
    "logical_xor": (_compare(np.logical_xor), None),
}
BITVEC = {
    "bitwise_and": (np.bitwise_and, np.bitwise_and.reduce),
    "bitwise_or": (np.bitwise_or, np.bitwise_or.reduce),
    "bitwise_xor": (np.bitwise_xor, np.bitwise_xor.reduce),
    "left_shift": (np.left_shift, None),
    "right_shift": (np.right_shift, None),
}
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "copy": lambda x: x,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "square": np.square,
    "abs": np.abs,
    "sign": np.sign,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "silu_dx": lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_apprx_tanh": _tanh_gelu,
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x))),
    "softplus": lambda x: np.logaddexp(0, x),
    "sin": np.sin,
    "erf": _erf,
}

OPS: dict[str, Op] = {
    **{name: Op(name, "binary", compute, reduce=fold) for name, (compute, fold) in BINARY.items()},
    **{name: Op(name, "bitvec", compute, reduce=fold) for name, (compute, fold) in BITVEC.items()},
    **{name: Op(name, "activation", compute) for name, compute in ACTIVATIONS.items()},
}
# In Python they divide; no instruction does: the official simulator takes them, the device does not.
MISSING_ON_DEVICE = ("divide", "mod", "fmod")
