"""Prepares tests for running, once for all responses to a prompt."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tasks.verifiers.code.harness import make_runnable
from tasks.verifiers.code.judgeable import TOO_DEEP, find_problem
from tasks.verifiers.code.split import split
from tasks.verifiers.code.syntax import parse


@dataclass(frozen=True)
class Prepared:
    """Tests that are ready to run.

    Attributes:
        given: code that runs before the response, in its process.
        setup: code that runs before the tests.
        tests: the tests, split into code of the two processes.
        classes: names of the classes of the tests, whose instances are returned as data.
        crossing: the classes that the response's process has too.
        problem: why they cannot be verified, whatever the response is, or None if they can.
        asks: for each test, True if it cannot pass if the response defines nothing.
        theirs: for each test, names of Python that refer to functions of the response; may be empty if no test has any.
    """

    given: str
    setup: str
    tests: list[str]
    classes: list[str]
    crossing: list[str]
    problem: str | None = None
    asks: list[bool] = field(default_factory=list)
    theirs: list[list[str]] = field(default_factory=list)


def prepare(given: str, setup: str, tests: Sequence[str]) -> Prepared:
    """Return tests that are ready to run. All of them must be valid Python.

    Raises:
        TestsNothingError: a test cannot fail, or nothing runs it.
    """
    return _prepare(given, setup, tuple(tests))


@lru_cache(maxsize=1024)  # the samples of a group have the same tests
def _prepare(given: str, setup: str, tests: tuple[str, ...]) -> Prepared:
    setup, running = make_runnable(setup, tests)
    for_response = "\n".join(filter(None, (extract_imports(setup), given)))
    try:
        parts = split(given, setup, running)
        problem = find_problem(parts)
    except RecursionError:
        return Prepared(for_response, f"{given}\n{setup}", running, [], [], TOO_DEEP)
    return Prepared(
        for_response, parts.setup, parts.tests, parts.classes, parts.crossing, problem, parts.asks, parts.theirs
    )


def extract_imports(setup: str) -> str:
    """Return the import statements of the setup, which a response may rely on; the rest is only for the tests."""
    lines = [line for line in parse(setup).body if isinstance(line, ast.Import | ast.ImportFrom)]
    return "\n".join(ast.unparse(line) for line in lines)
