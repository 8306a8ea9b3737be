"""The modules that a test may forget to import, and the main module of a test, in both of its processes."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterable
from typing import Any

ALIASES = {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot", "nx": "networkx", "sp": "scipy"}
"""Customary short names of packages, which a test may use without importing them."""
PACKAGES = (*ALIASES.values(), "pytest", "scipy", "sympy", "torch", "sklearn", "numpy", "pandas", "networkx")
"""Names of third-party packages that are never taken for the response's."""
MODULES = {
    **{name: name for name in sys.stdlib_module_names if not hasattr(builtins, name)},
    **{name: name for name in PACKAGES},
    **ALIASES,
}
"""Modules by the names under which a test may use them without an import."""


class MainModule(types.ModuleType):
    """The main module, whose names are those of the tests: where classes are looked up by their module's name."""

    def __init__(self, names: dict[str, Any]) -> None:
        """Create it over the names, which may still grow."""
        super().__init__("__main__")
        object.__setattr__(self, "_names", names)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The names of the tests."""
        names: dict[str, Any] = object.__getattribute__(self, "_names")
        return names

    def __getattr__(self, name: str) -> Any:
        """Return what the tests bind to a name."""
        names = object.__getattribute__(self, "_names")
        if name not in names:
            raise AttributeError(name)
        return names[name]

    def __dir__(self) -> Iterable[str]:
        """Return the names of the tests."""
        return list(object.__getattribute__(self, "_names"))
