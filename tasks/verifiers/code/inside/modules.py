"""Defines the modules that a test may forget to import, and the main module of a test, for both of its processes."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterable
from typing import Any

ALIASES = {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot", "nx": "networkx", "sp": "scipy"}
"""Common short names of packages, which a test may use without importing them."""
PACKAGES = (*ALIASES.values(), "pytest", "scipy", "sympy", "torch", "sklearn", "numpy", "pandas", "networkx")
"""Names of third-party packages that are never assumed to be defined by the response."""
MODULES = {
    **{name: name for name in sys.stdlib_module_names if not hasattr(builtins, name)},
    **{name: name for name in PACKAGES},
    **ALIASES,
}
"""Modules that a test may use without an import, by the names that it uses."""


class MainModule(types.ModuleType):
    """The main module, whose names are the names of the tests, so that classes can be looked up by module name."""

    def __init__(self, names: dict[str, Any]) -> None:
        """Create it over the names, which may be extended later."""
        super().__init__("__main__")
        object.__setattr__(self, "_names", names)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The names of the tests."""
        names: dict[str, Any] = object.__getattribute__(self, "_names")
        return names

    def __getattr__(self, name: str) -> Any:
        """Return the value of a name of the tests."""
        names = object.__getattribute__(self, "_names")
        if name not in names:
            raise AttributeError(name)
        return names[name]

    def __dir__(self) -> Iterable[str]:
        """Return the names that are bound in the global namespace of the tests."""
        return list(object.__getattribute__(self, "_names"))
