"""The NKI kernels against the reference, as a table: sizes, error, the error allowed, memory, time to interpret.

    python benchmarks/nki_kernels.py [--real]

Errors are root mean squares as shares of the reference's, computed in float64 from the same inputs; the share allowed
follows from the number of roundings (tests/kernels/nki/cases.py). --real adds the published models' sizes (a minute).
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from tests.kernels.nki.cases import Case, bound, errors, tensors
from tests.kernels.nki.test_experts_backward import CASES, REAL
from trnt.kernels.nki.experts_backward import experts_backward
from trnt.kernels.nki.experts_forward import experts_forward
from trnt.kernels.nki.layout import arrange


def row(name: str, case: Case) -> None:
    begin = time.perf_counter()
    found = errors(case)
    seconds = time.perf_counter() - begin
    worst = max((error / bound(case, key), key) for key, error in found.items())
    inside = {key: error for key, error in found.items() if key != "out"}
    forward, backward = experts_forward.report.peak, experts_backward.report.peak
    sizes = f"T{case.T} D{case.D} F{case.F} E{case.E} K{case.K} B{case.B} {str(case.dtype)[6:]}"
    print(
        f"| {name} | {sizes} | {found['out']:.1e} | {max(inside.values()):.1e} | {worst[0]:.2f} ({worst[1]}) "
        f"| {forward.sbuf:,} / {backward.sbuf:,} | {seconds:.1f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true")
    given = parser.parse_args()
    print("| case | sizes | error of out | largest of gradients | of what is allowed | SBUF bytes fwd / bwd | s |")
    print("|---|---|---|---|---|---|---|")
    for name, case in {**CASES, **(REAL if given.real else {})}.items():
        row(name, case)
    case = Case(512, 2048, 768, 8, 8, dtype=torch.bfloat16)
    x, scores, ids, w1, w2, w3, *_ = tensors(case)
    layout = arrange(scores, ids, case.E, case.B)
    begin = time.perf_counter()
    experts_forward(x, *layout.operands, w1, w2, w3)
    seconds = time.perf_counter() - begin
    report = experts_forward.report
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    print(
        f"\nforward at Qwen3-30B-A3B's sizes, 8 experts, 512 tokens, top-8: interpreted in {seconds:.1f} s "
        f"({len(report.issued):,} instructions, peak {report.peak.sbuf:,} bytes per partition) on {machine}"
    )


if __name__ == "__main__":
    main()
