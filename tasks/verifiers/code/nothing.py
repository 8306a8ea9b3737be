"""Recognition of tests that pass although there is no response."""

from __future__ import annotations

import atexit
from functools import cache
from typing import Any

from tasks.verifiers.code import open_sandbox
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.prepared import prepare
from tasks.verifiers.code.programs import verdicts_on
from tasks.verifiers.code.sandbox import Sandbox, SandboxError
from tasks.verifiers.scores import CannotJudge


def pass_without_a_response(ground_truth: dict[str, Any]) -> bool | None:
    """Return True if all tests pass an empty program; None where that cannot be tried here.

    Most tests show by their text that they would fail: they call what it does not define. The others are run. Cases of
    standard input are not asked: a program may be right that prints nothing.

    Args:
        ground_truth: a well-formed ground truth of `code`.
    """
    if "cases" in ground_truth:
        return False
    given, setup = (ground_truth.get(key) or "" for key in ("given", "setup"))
    if prepare(given, setup, ground_truth["tests"]).asks:
        return False
    try:
        verdicts = verdicts_on("", ground_truth, CodeConfig(), float("inf"), _sandbox())
    except (SandboxError, CannotJudge):
        return None
    return all(verdict.passed for verdict in verdicts)


@cache
def _sandbox() -> Sandbox:
    """Return the sandbox of this process, started when first needed."""
    sandbox = open_sandbox(CodeConfig())
    atexit.register(sandbox.close)
    return sandbox
