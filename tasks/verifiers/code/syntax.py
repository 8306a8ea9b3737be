"""Parses Python in one thread at a time.

CPython 3.11 counts the depth of the trees of all threads of a process in one number: if two threads parse at the same
time, one may fail with `SystemError: AST constructor recursion depth mismatch`, whatever it parses.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_PARSING = Lock()
MAX_DIGITS = 100_000
"""Maximum length of an integer in source code, in digits."""


def parse(source: str) -> ast.Module:
    """Return the syntax tree of a module, with integers of up to `MAX_DIGITS`; raises what `ast.parse` raises."""
    with _allow_long_integers():
        return ast.parse(source)


def unparse(tree: ast.AST) -> str:
    """Return source code of this tree, with integers of up to `MAX_DIGITS`; raises what `ast.unparse` raises."""
    with _allow_long_integers():
        try:
            return ast.unparse(tree)
        except AttributeError:  # statements that were made here have no line numbers, and some kinds need them
            return ast.unparse(ast.fix_missing_locations(tree))


@contextmanager
def _allow_long_integers() -> Iterator[None]:
    with _PARSING:
        digits = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(MAX_DIGITS)
        try:
            yield
        finally:
            sys.set_int_max_str_digits(digits)
