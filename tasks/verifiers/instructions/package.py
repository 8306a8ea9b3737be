"""Loads single modules of the package `if-verifiable` without the side effects of importing the package.

The package's `__init__` imports `datasets` (seconds, and 100 MB in every worker), and its IFBench modules download NLTK
data when they are imported. So modules are loaded without `__init__` and with a stand-in for the module that downloads.
The copies are private: another import of the package gets the complete, unchanged package.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Mapping
from typing import Any

NAME = "if_verifiable"
"""Name by which the package is imported."""


def load(module: str, stand_ins: Mapping[str, types.ModuleType] = types.MappingProxyType({})) -> Any:
    """Return a private copy of one of the package's modules.

    Args:
        module: full name of the module.
        stand_ins: replacements for modules that it imports, by full name.

    Raises:
        ImportError: If the package is not installed.
    """
    spec = importlib.util.find_spec(NAME)
    if spec is None:
        raise ImportError("precise_if needs the package if-verifiable")
    bare = types.ModuleType(NAME)
    bare.__path__ = list(spec.submodule_search_locations or [])
    originals = {name: sys.modules.pop(name) for name in _list_loaded()}
    sys.modules.update({NAME: bare, **stand_ins})
    try:
        return importlib.import_module(module)
    finally:
        for name in _list_loaded():
            del sys.modules[name]
        sys.modules.update(originals)


def _list_loaded() -> list[str]:
    return [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]
