"""The docstrings of options, as pydantic takes them for their descriptions, by way of a module's syntax tree.

Pydantic's own way (`use_attribute_docstrings`) tokenizes the source of every class, and asks all loaded modules for
their files to find it. That loads pandas, of which flytekit holds a placeholder until it is used. Both together were a
quarter of the time until a pod's first line.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pydantic._internal import _docs_extraction, _fields


def of_options(cls: type[Any], use_inspect: bool = False) -> dict[str, str]:
    """Return the docstrings of the attributes that a class declares itself, by name.

    Pydantic's own function finds those of a class that is defined within a function, and has the same arguments.
    """
    file = vars(sys.modules[cls.__module__]).get("__file__") if cls.__module__ in sys.modules else None
    classes = _classes(Path(file)) if file and file.endswith(".py") else {}
    if cls.__qualname__ not in classes:
        return _docs_extraction.extract_docstrings_from_cls(cls, use_inspect)
    visitor = _docs_extraction.DocstringVisitor()
    visitor.generic_visit(classes[cls.__qualname__])
    return visitor.attrs


def read_from_syntax_trees() -> None:
    """Have pydantic read the docstrings of attributes by `of_options`, from now on."""
    _fields.extract_docstrings_from_cls = of_options


@cache
def _classes(path: Path) -> dict[str, ast.ClassDef]:
    """Return the classes of a module by qualified name, without those within functions and those defined twice."""
    by_name: dict[str, list[ast.ClassDef]] = {}
    waiting = [("", node) for node in ast.parse(path.read_text(encoding="utf-8")).body]
    while waiting:
        outer, node = waiting.pop()
        if isinstance(node, ast.ClassDef):
            by_name.setdefault(f"{outer}{node.name}", []).append(node)
            waiting += [(f"{outer}{node.name}.", inner) for inner in node.body]
    return {name: nodes[0] for name, nodes in by_name.items() if len(nodes) == 1}
