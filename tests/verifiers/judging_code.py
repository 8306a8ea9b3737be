"""How the tests of `code` run a program in a sandbox of their own."""

from tasks.verifiers.code import read_cases
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.programs import _score
from tasks.verifiers.code.running import run_assertions, run_cases
from tasks.verifiers.code.timing import Clock

PATIENT = CodeConfig(test_seconds=10, total_seconds=20)


def verdicts_on(sandbox, program, ground_truth, config=PATIENT):
    """One verdict for each test."""
    clock = Clock(config.test_seconds, config.total_seconds)
    if "cases" in ground_truth:
        return run_cases(sandbox, program, read_cases(ground_truth["cases"]), config, clock)
    return run_assertions(sandbox, program, ground_truth.get("setup") or "", ground_truth["tests"], config, clock)


def detail_of_output(sandbox, program, output, given="", config=PATIENT):
    """What is wrong with the output of a program; nothing where it is right."""
    (verdict,) = verdicts_on(sandbox, program, {"cases": [{"input": given, "output": output}]}, config)
    assert verdict.passed == (not verdict.detail)
    return verdict.detail


def detail_of_tests(sandbox, program, *tests, setup="", config=PATIENT):
    """What is wrong in the first test that fails; nothing where all pass."""
    verdicts = verdicts_on(sandbox, program, {"setup": setup, "tests": list(tests)}, config)
    return next((verdict.detail for verdict in verdicts if not verdict.passed), "")


def score_on(sandbox, program, ground_truth, config=PATIENT):
    """The score, as a code service would give it."""
    return _score(verdicts_on(sandbox, program, ground_truth, config))
