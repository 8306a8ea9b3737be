"""Reads the docstrings of options for pydantic from a module's syntax tree.

Pydantic's own implementation (`use_attribute_docstrings`) tokenizes the source of every class, and looks up the files
of all loaded modules to find it. The look-up imports pandas, which flytekit otherwise loads lazily. Both together took
a quarter of the time until a pod's first log line.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pydantic._internal import _docs_extraction, _fields


def extract_docstrings(cls: type[Any], use_inspect: bool = False) -> dict[str, str]:
    """Return the docstrings of the attributes that a class declares itself, by name.

    For a class defined inside a function, pydantic's own function is used, which has the same arguments.
    """
    file = vars(sys.modules[cls.__module__]).get("__file__") if cls.__module__ in sys.modules else None
    classes = _parse_classes(Path(file)) if file and file.endswith(".py") else {}
    if cls.__qualname__ not in classes:
        return _docs_extraction.extract_docstrings_from_cls(cls, use_inspect)
    visitor = _docs_extraction.DocstringVisitor()
    visitor.generic_visit(classes[cls.__qualname__])
    return visitor.attrs


def read_from_syntax_trees() -> None:
    """Make pydantic read the docstrings of attributes with `extract_docstrings` from now on."""
    _fields.extract_docstrings_from_cls = extract_docstrings


@cache
def _parse_classes(path: Path) -> dict[str, ast.ClassDef]:
    """Return the classes of a module by qualified name, except classes inside functions and classes defined twice."""
    by_name: dict[str, list[ast.ClassDef]] = {}
    waiting = [("", node) for node in ast.parse(path.read_text(encoding="utf-8")).body]
    while waiting:
        outer, node = waiting.pop()
        if isinstance(node, ast.ClassDef):
            by_name.setdefault(f"{outer}{node.name}", []).append(node)
            waiting += [(f"{outer}{node.name}.", inner) for inner in node.body]
    return {name: nodes[0] for name, nodes in by_name.items() if len(nodes) == 1}
