r"""Verifier `code`: the proportion of its tests that the program in a response passes (by default; `CodeConfig.score`).

A ground truth is one of

    {"tests": ["assert f(1) == 2", ...], "setup": "import math"}   calls of functions
    {"cases": [{"input": "1\n", "output": "2\n"}, ...]}            a program that uses standard input and output

`setup` is optional. `given` is optional, too: code that runs before the response, and that the response and the tests
may use.

The program is the last fenced block (`extraction`). It runs in a sandbox (`sandbox`, `inside`), in a process that never
contains an expected result. Tests are split: what needs the response is evaluated in the process of the response, and
assertions are evaluated in a second process on the values that the first one returns (`split`). Outputs are compared
outside of the sandbox (`comparison`). Without a working sandbox nothing runs, and every score is an error.

    client ──HTTP, over a Unix socket or to another machine──► server, service ──► programs ──► running ──► sandbox
                                                               requests            two queues   tests       processes
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.harness import TestsNothingError
from tasks.verifiers.code.prepared import prepare
from tasks.verifiers.code.running import Case
from tasks.verifiers.code.sandbox import Isolation, Sandbox, SandboxError
from tasks.verifiers.code.syntax import parse
from tasks.verifiers.scores import GroundTruthError

MAX_TESTS = 1000
"""Maximum number of tests in a ground truth."""


def check_ground_truth(ground_truth: Any) -> None:
    """Raise `GroundTruthError` if there are no tests, or a test is not valid Python or cannot be verified."""
    if not isinstance(ground_truth, dict) or ("tests" in ground_truth) == ("cases" in ground_truth):
        raise GroundTruthError(f"expected an object with either 'tests' or 'cases', got {ground_truth!r:.200}")
    unknown = set(ground_truth) - ({"tests", "setup", "given"} if "tests" in ground_truth else {"cases"})
    if unknown:
        raise GroundTruthError(f"unknown keys {sorted(unknown)}; accepted: tests, setup and given, or cases")
    tests = ground_truth.get("tests", ground_truth.get("cases"))
    if not isinstance(tests, list) or not 1 <= len(tests) <= MAX_TESTS:
        raise GroundTruthError(f"the tests must be a list of 1 to {MAX_TESTS}")
    if "cases" in ground_truth:
        read_cases(tests)
        return
    given, setup = (ground_truth.get(key) or "" for key in ("given", "setup"))
    for name, code in (("given", given), ("setup", setup), *((f"test {i}", t) for i, t in enumerate(tests))):
        if not isinstance(code, str):
            raise GroundTruthError(f"{name} is not text: {code!r:.200}")
        try:
            parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise GroundTruthError(f"{name} is not Python: {error}: {code!r:.200}") from None
    try:
        problem = prepare(given, setup, tests).problem
    except TestsNothingError as error:
        problem = str(error)
    if problem:
        raise GroundTruthError(problem)


def missing_resources(ground_truth: Any) -> list[str]:
    """Return why this machine cannot run a sandbox, or an empty list."""
    problem = _find_sandbox_problem()
    return [problem] if problem else []


@cache
def _find_sandbox_problem() -> str:
    try:
        open_sandbox(CodeConfig()).close()
    except SandboxError as error:
        return str(error)
    return ""


def open_sandbox(config: CodeConfig, nice: int = 0) -> Sandbox:
    """Open the sandbox that the options select; `nice` is the niceness of all processes in it.

    Raises:
        SandboxError: this machine cannot run it.
    """
    kinds: tuple[Isolation, ...] = ("namespaces", "landlock") if config.isolation == "auto" else (config.isolation,)
    problems = []
    for kind in kinds:
        try:
            return Sandbox(kind, config.python, config.disk_mib, tuple(config.packages), nice)
        except SandboxError as error:
            problems.append(str(error))
    raise SandboxError("; ".join(problems))


def read_cases(cases: list[Any]) -> list[Case]:
    """Return the cases of a ground truth; raises `GroundTruthError` if one is malformed."""
    for case in cases:
        if not isinstance(case, dict) or set(case) != {"input", "output"}:
            raise GroundTruthError(f"a case must have 'input' and 'output', got {case!r:.200}")
        if not isinstance(case["input"], str) or not isinstance(case["output"], str):
            raise GroundTruthError(f"input and output of a case must be text, got {case!r:.200}")
    return [Case(**case) for case in cases]
