r"""`code`: does the program in a response pass its tests? By default the proportion that passes.

A ground truth is one of

    {"tests": ["assert f(1) == 2", ...], "setup": "import math"}   functions that are called; `setup` is optional
    {"cases": [{"input": "1\n", "output": "2\n"}, ...]}          a program between standard input and output

The program is the last fenced block (`extraction`). It runs in a sandbox (`sandbox`, `inside`), where the process that
holds it never holds an expected result: assertions are evaluated in a second process that calls into the first, outputs
are compared here. Without a working sandbox nothing runs, and the judgement is an error.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.extraction import extract_program
from tasks.verifiers.code.running import Case, Verdict, run_assertions, run_cases
from tasks.verifiers.code.sandbox import Isolation, Sandbox, SandboxError
from tasks.verifiers.code.timing import OnSlow, Pace, at_once
from tasks.verifiers.scores import CannotJudge, GroundTruthError, Score

MAX_TESTS = 1000
MAX_PROGRAM_CHARS = 200_000
ATTEMPTS = 2
"""How often a response is run where the sandbox fails under it."""


def check_ground_truth(ground_truth: Any) -> None:
    """Raise `GroundTruthError` where there are no tests, or one that is no Python."""
    if not isinstance(ground_truth, dict) or ("tests" in ground_truth) == ("cases" in ground_truth):
        raise GroundTruthError(f"want an object with either 'tests' or 'cases', got {ground_truth!r:.200}")
    unknown = set(ground_truth) - ({"tests", "setup"} if "tests" in ground_truth else {"cases"})
    if unknown:
        raise GroundTruthError(f"unknown keys {sorted(unknown)}; accepted: tests and setup, or cases")
    tests = ground_truth.get("tests", ground_truth.get("cases"))
    if not isinstance(tests, list) or not 1 <= len(tests) <= MAX_TESTS:
        raise GroundTruthError(f"the tests must be a list of 1 to {MAX_TESTS}")
    if "cases" in ground_truth:
        _cases(tests)
        return
    for name, code in (("setup", ground_truth.get("setup") or ""), *((f"test {i}", t) for i, t in enumerate(tests))):
        if not isinstance(code, str):
            raise GroundTruthError(f"{name} is not text: {code!r:.200}")
        try:
            ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise GroundTruthError(f"{name} is no Python: {error}: {code!r:.200}") from None


def missing_resources(ground_truth: Any) -> list[str]:
    """The sandbox, where this machine cannot hold one."""
    try:
        _workshop.sandbox()
    except SandboxError as error:
        return [str(error)]
    return []


def judge(response: str, ground_truth: Any, messages: Sequence[Mapping[str, str]] | None = None) -> Score:
    """The proportion of tests that pass, or 1 if all do, as `configure` said; `passed` means all in either case."""
    check_ground_truth(ground_truth)
    program = extract_program(response)
    if program is None:
        return Score.binary(False, "no code block")
    if len(program) > MAX_PROGRAM_CHARS:
        return Score.binary(False, f"a program of more than {MAX_PROGRAM_CHARS} characters")
    return _score(_workshop.run(program, ground_truth), _workshop.config)


def configure(config: CodeConfig, on_slow: OnSlow = at_once) -> None:
    """Set the options of this process, and what is asked when a program is slow; an open sandbox is closed."""
    _workshop.configure(config, on_slow)


def warm_up() -> None:
    """Nothing: the sandbox is started by the first judgement, which costs it a tenth of a second and no limit."""


class _Workshop:
    """The sandbox of this process, started when first needed and replaced when it fails."""

    def __init__(self) -> None:
        self.config = CodeConfig()
        self._on_slow: OnSlow = at_once
        self._pace = Pace()
        self._sandbox: Sandbox | None = None
        self._owner = 0

    def configure(self, config: CodeConfig, on_slow: OnSlow = at_once) -> None:
        self.config, self._on_slow = config, on_slow
        self.close()

    def run(self, program: str, ground_truth: dict[str, Any]) -> list[Verdict]:
        problem = ""
        for _ in range(ATTEMPTS):
            try:
                return _run(self.sandbox(), program, ground_truth, self.config, self._on_slow, self._pace)
            except SandboxError as error:
                problem = str(error)
                self.close()
        raise CannotJudge(problem)

    def sandbox(self) -> Sandbox:
        if self._sandbox is None or self._owner != os.getpid():
            self._sandbox, self._owner = open_sandbox(self.config), os.getpid()
        return self._sandbox

    def close(self) -> None:
        if self._sandbox is not None and self._owner == os.getpid():
            self._sandbox.close()
        self._sandbox = None


_workshop = _Workshop()


def open_sandbox(config: CodeConfig) -> Sandbox:
    """The sandbox that the options ask for; raises `SandboxError` where this machine cannot hold it."""
    kinds: tuple[Isolation, ...] = ("namespaces", "landlock") if config.isolation == "auto" else (config.isolation,)
    problems = []
    for kind in kinds:
        try:
            return Sandbox(kind, config.python, config.disk_mib)
        except SandboxError as error:
            problems.append(str(error))
    raise SandboxError("; ".join(problems))


def _run(
    sandbox: Sandbox,
    program: str,
    ground_truth: dict[str, Any],
    config: CodeConfig,
    on_slow: OnSlow = at_once,
    pace: Pace | None = None,
) -> list[Verdict]:
    if "cases" in ground_truth:
        return run_cases(sandbox, program, _cases(ground_truth["cases"]), config, on_slow, pace)
    setup = ground_truth.get("setup") or ""
    return run_assertions(sandbox, program, setup, ground_truth["tests"], config, on_slow, pace)


def _cases(cases: list[Any]) -> list[Case]:
    for case in cases:
        if not isinstance(case, dict) or set(case) != {"input", "output"}:
            raise GroundTruthError(f"a case must have 'input' and 'output', got {case!r:.200}")
        if not isinstance(case["input"], str) or not isinstance(case["output"], str):
            raise GroundTruthError(f"input and output of a case must be text, got {case!r:.200}")
    return [Case(**case) for case in cases]


def _score(verdicts: list[Verdict], config: CodeConfig) -> Score:
    failed = [(number, verdict) for number, verdict in enumerate(verdicts, start=1) if not verdict.passed]
    passed = len(verdicts) - len(failed)
    proportion = passed / len(verdicts)
    detail = f"{passed} of {len(verdicts)} tests passed"
    if failed:
        number, verdict = failed[0]
        # The response may have worded it, with half characters that no file can hold.
        detail += f"; test {number}: {verdict.detail}".encode(errors="replace").decode()
    return Score(config.worth(proportion), not failed, detail)
