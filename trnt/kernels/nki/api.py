"""The one place where kernels get NKI from: the real package where it imports, the interpreter everywhere else.

Kernel files import `nki, nl, nisa` from here and nothing else but `math` and each other. The names are module objects:
the compiler resolves `nl.x` and `nisa.x` itself.

TRNT_NKI=interpreter takes the interpreter also where `nki` imports: its checks of capacity, order and the Python subset
are those that the official simulator lacks.
"""

from __future__ import annotations

import os

from trnt.kernels.choose import importable

__all__ = ["nisa", "nki", "nl", "real"]


def real() -> bool:
    """Whether the vendor's package is here and wanted; PyPI's placeholder of that name has no `isa`."""
    return os.environ.get("TRNT_NKI") != "interpreter" and importable("nki.isa")


if real():
    import nki
    import nki.isa as nisa
    import nki.language as nl
else:
    from trnt.kernels import sim as nki
    from trnt.kernels.sim import isa as nisa
    from trnt.kernels.sim import language as nl
