"""Parsing of Python by one thread at a time.

CPython 3.11 counts how deep all threads of a process are in their trees in one number: where two of them parse, one may
end in `SystemError: AST constructor recursion depth mismatch`, whatever it parses.
"""

from __future__ import annotations

import ast
from threading import Lock

_PARSING = Lock()


def parse(source: str) -> ast.Module:
    """Return the syntax tree of a module; raises what `ast.parse` raises."""
    with _PARSING:
        return ast.parse(source)
