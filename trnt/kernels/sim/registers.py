"""Registers: values known only at run time. Python may hold one, not look into it."""

from __future__ import annotations

from typing import Any

from trnt.kernels.sim.refusal import refuse


class VirtualRegister:
    """A 32-bit integer of an engine's sequencer. Only instructions, loop bounds and `scalar_offset` take it."""

    def __init__(self, value: int | None = None, *, frozen: bool = False) -> None:
        self._value = value
        self._frozen = frozen

    def read(self) -> int:
        """The interpreter's own way in."""
        if self._value is None:
            refuse("unwritten", "a register that was never loaded")
        return self._value

    def write(self, value: int) -> None:
        if self._frozen:
            refuse("dynamic", "the index of a run-time loop is written to: it is frozen")
        self._value = value


def _refused(what: str) -> Any:
    def method(self: VirtualRegister, *_: Any) -> Any:
        refuse("dynamic", f"Python {what} on a register: its value is known only on the device")

    return method


for _what, _names in {
    "arithmetic": "add radd sub rsub mul rmul floordiv rfloordiv truediv mod rmod neg pow lshift rshift and or",
    "comparison": "eq ne lt le gt ge bool",
    "conversion to a number": "int index float",
    "formatting": "str",
}.items():
    for _name in _names.split():
        setattr(VirtualRegister, f"__{_name}__", _refused(_what))
VirtualRegister.__hash__ = object.__hash__  # type: ignore[method-assign]


def number(value: Any) -> int:
    """The value of a register, or of a plain integer."""
    return value.read() if isinstance(value, VirtualRegister) else int(value)
