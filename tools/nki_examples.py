"""Run the Neuron documentation's own example kernels through the interpreter and compare with their references.

    python tools/nki_examples.py PATH_TO/aws-neuron-sdk/nki/examples

The examples are AWS's: fetch them (git clone of aws-neuron/aws-neuron-sdk), they are not part of this project. Printed:
one line per kernel with its largest error. Exit code 1 when one differs, or one that must be refused is not.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trnt.kernels import sim

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def load(path: Path) -> Any:
    """A module of the examples, its `import nki` answered by the interpreter."""
    with sim.stand_in():
        spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def mamba(delta: np.ndarray, u: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The selective scan in float64: h = exp(delta A) h + delta u B, y = sum over states of h C."""
    state = np.zeros((*delta.shape[:2], a.shape[1]))
    out = np.zeros(delta.shape)
    for t in range(delta.shape[2]):
        state = np.exp(delta[:, :, t, None] * a) * state + (delta * u)[:, :, t, None] * b[:, None, :, t]
        out[:, :, t] = (state * c[:, None, :, t]).sum(-1)
    return out


def cases(root: Path) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    """(name, what runs, what must come out; None: it must be refused)."""
    a, b = normal(256, 1024), normal(256, 1024)
    kernel = load(root / "tensor_addition" / "tensor_addition_nki_kernels.py")
    yield "tensor addition", lambda: kernel.nki_tensor_add(a, b), a + b
    transpose = load(root / "transpose2d" / "transpose2d_nki_kernels.py")
    small = np.arange(60, dtype=np.int8).reshape(5, 12)
    turned = small.reshape(5, 3, 4).transpose(0, 2, 1).reshape(5, 12)
    yield "transpose", lambda: transpose.tensor_transpose2D_kernel_(small, (3, 4)), turned
    matmul = load(root / "matrix_multiplication" / "matrix_multiplication_nki_kernels.py")
    left, right = normal(128, 64), normal(128, 512)
    yield "matmul, basic", lambda: matmul.nki_matmul_basic_(left, right), left.T @ right
    tall, wide = normal(1024, 2048), normal(1024, 1024)
    for name in ("tiled", "hoist_load", "block_free_dimension", "fully_optimized"):
        function = getattr(matmul, f"nki_matmul_{name}_")
        yield f"matmul, {name}", lambda function=function: function(tall, wide), tall.T @ wide
    average = load(root / "average_pool2d" / "average_pool2d_nki_kernels.py")
    image = np.arange(72, dtype=np.float16).reshape(2, 6, 6)
    yield "average pooling", lambda: average.tensor_avgpool_kernel(image, 2), average.np_average_pool_2D(image, 2)
    scans = load(root / "fused_mamba" / "mamba_nki_kernels.py")
    inputs = (np.abs(normal(1, 256, 512)) * 0.1, normal(1, 256, 512), -np.abs(normal(256, 4)))
    inputs += (normal(1, 4, 512), normal(1, 4, 512))
    for name in ("mamba_v1", "mamba_v2", "mamba_v3"):
        yield name, lambda name=name: getattr(scans, name)(*inputs), mamba(*inputs)
    split = load(root / "index-case-1.py")
    odd = normal(4, 5)
    yield "split into even and odd", lambda: split.tensor_split_kernel_(odd), (odd[:, ::2], odd[:, 1::2])
    maximum = load(root / "index-case-3.py")
    pooled = image.reshape(2, 3, 2, 3, 2).max((2, 4))
    yield "maximum pooling", lambda: maximum.tensor_maxpool_kernel_(image, 2), pooled
    exponent = load(root / "layout-pass.py")
    tile = normal(128, 512)
    yield "exponential", lambda: exponent.tensor_exp_kernel_(tile), np.exp(tile)
    started = load(root / "getting_started_torch.py")
    yield "getting started", lambda: started.nki_tensor_add_kernel(odd, odd), odd + odd
    violation = load(root / "layout-violation.py")
    yield "layout violation (256 partitions)", lambda: violation.tensor_exp_kernel_(normal(256, 512)), None


def error(got: Any, expected: Any) -> float:
    """The largest difference, as a share of the largest value."""
    pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
    worst = 0.0
    for a, b in pairs:
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        worst = max(worst, float(np.abs(a - b).max() / np.abs(b).max()))
    return worst


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) == 2 else None
    if root is None or not root.is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    failed = 0
    for name, run, expected in cases(root):
        begin = time.perf_counter()
        try:
            got = run()
            found = "NOT refused" if expected is None else f"error {error(got, expected):.1e}"
            # fp32 sums of up to 1,024 terms: sqrt(1024) x 2^-24 of their size, with room.
            good = expected is not None and error(got, expected) < 2e-5
        except sim.Refused as refused:
            found, good = f"refused ({refused.rule}): {refused.cause}", expected is None
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name:36} {time.perf_counter() - begin:5.2f} s  {found}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
