"""What other packages add: model families (`trnt.models`) and experts kernels (`trnt.kernels`), by entry points.

A plugin is listed by name at once and loaded when it is used; one that cannot be loaded costs one warning.
docs/customise.md has a complete one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from trnt import console
from trnt.errors import TrntError


@dataclass(frozen=True)
class Plugin:
    """One entry point: its name, and the package that brought it."""

    name: str
    package: str
    entry: metadata.EntryPoint

    def load(self) -> Any:
        """The object. Raises TrntError with what went wrong."""
        try:
            return self.entry.load()
        except Exception as error:  # whatever another package's code raises
            raise TrntError(
                f"the plugin {self.name} of {self.package} cannot be loaded: {type(error).__name__}: {error}",
                f"correct {self.package}, or pip uninstall {self.package}",
            ) from error


@functools.cache
def installed(group: str) -> dict[str, Plugin]:
    """Name -> plugin of an entry-point group, in the order of their names."""
    found = {}
    for entry in sorted(metadata.entry_points(group=group), key=lambda one: one.name):
        package = entry.dist.name if entry.dist is not None else "?"
        found[entry.name] = Plugin(entry.name, package, entry)
    return found


def loaded(group: str, needs: tuple[str, ...], taken: set[str]) -> dict[str, Any]:
    """Name -> object of every plugin that has what it must have and whose name is not `taken`; a warning for others."""
    found = {}
    for name, plugin in installed(group).items():
        try:
            value = plugin.load()
        except TrntError as error:
            console.warn(error.cause)
            continue
        missing = [need for need in needs if not hasattr(value, need)]
        if missing or name in taken:
            why = f"has no {', '.join(missing)}" if missing else "has the name of one of trnt's own"
            console.warn(f"the plugin {name} of {plugin.package} is left out: it {why}")
            continue
        found[name] = value
    return found
