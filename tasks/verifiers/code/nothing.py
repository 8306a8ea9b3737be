"""Detects tests that pass without a response, and would reward a response for nothing."""

from __future__ import annotations

import atexit
from functools import cache
from typing import Any

from tasks.verifiers.code import open_sandbox
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.prepared import prepare
from tasks.verifiers.code.programs import judge_tests
from tasks.verifiers.code.sandbox import Sandbox, SandboxError
from tasks.verifiers.scores import CannotJudge


def remove_free_tests(ground_truth: dict[str, Any]) -> dict[str, Any] | None:
    """Return the ground truth without tests that an empty program passes, or None if that cannot be tested here.

    Such a test may prepare the next one, so it is prepended to the next one. If all pass, none is left.

    The text of most tests shows that they would fail: they call what an empty program does not define. The others are
    run. Cases of standard input are kept, because a program that prints nothing may be correct.

    Args:
        ground_truth: a well-formed ground truth of `code`.
    """
    if "cases" in ground_truth:
        return ground_truth
    tests = ground_truth["tests"]
    given, setup = (ground_truth.get(key) or "" for key in ("given", "setup"))
    if all(prepare(given, setup, tests).asks):
        return ground_truth
    try:
        verdicts = judge_tests("", ground_truth, CodeConfig(), float("inf"), _start_sandbox())
    except (SandboxError, CannotJudge):
        return None
    return ground_truth | {"tests": _join_tests(tests, [verdict.passed for verdict in verdicts])}


def _join_tests(tests: list[str], free: list[bool]) -> list[str]:
    """Return the tests that are not free, each joined with the free ones before it, and the last with the rest."""
    joined: list[str] = []
    before: list[str] = []
    for test, is_free in zip(tests, free, strict=True):
        before.append(test)
        if not is_free:
            joined.append("\n".join(before))
            before = []
    return [*joined[:-1], "\n".join([joined[-1], *before])] if joined else []


@cache
def _start_sandbox() -> Sandbox:
    """Return the sandbox of this process, started when first needed."""
    sandbox = open_sandbox(CodeConfig())
    atexit.register(sandbox.close)
    return sandbox
