"""The one place where kernels get NKI from: the real package where it imports, the interpreter everywhere else.

Kernel files import `nki, nl, nisa` from here and nothing else but `math` and each other. The names are module objects:
the compiler resolves `nl.x` and `nisa.x` itself.
"""

from __future__ import annotations

import importlib.util
from typing import Any

nki: Any
nl: Any
nisa: Any


def real() -> bool:
    """Whether the vendor's package is here; PyPI's placeholder of that name has no `isa`."""
    try:
        return importlib.util.find_spec("nki.isa") is not None
    except (ImportError, ValueError):
        return False


if real():
    import nki as nki
    import nki.isa as nisa
    import nki.language as nl
else:
    from trnt.kernels import sim as nki
    from trnt.kernels.sim import isa as nisa
    from trnt.kernels.sim import language as nl
