"""An interpreter of the NKI subset that the kernels use, on NumPy, which refuses what the hardware would refuse.

This package stands where the module `nki` would: `jit`, `simulate`, `language`, `isa`. It runs a kernel's own source,
instruction by instruction, and checks what the official simulator says it lacks: capacity, overlap, the Python that the
compiler accepts, loops that depend on their order; and it counts for the cost model. Docs: docs/kernels.md.
"""

from trnt.kernels.sim import isa, language
from trnt.kernels.sim.refusal import RULES, Refused
from trnt.kernels.sim.run import Kernel, Report, jit, order_independent, simulate, stand_in

__all__ = [
    "RULES",
    "Kernel",
    "Refused",
    "Report",
    "isa",
    "jit",
    "language",
    "order_independent",
    "simulate",
    "stand_in",
]
