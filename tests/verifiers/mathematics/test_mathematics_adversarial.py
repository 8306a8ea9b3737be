"""`math` against responses that want reward without an answer, or the judge's life."""

import multiprocessing
import resource
import signal

import pytest
import sympy

from tasks.verifiers import mathematics
from tests.verifiers.mathematics.adversarial_mathematics import COSTLY, TABLE

pytestmark = pytest.mark.long

CPU_SECONDS = 2
MEMORY_BYTES = 4 * 2**30
OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL)
NOTHING, TOO_LARGE, REWARD, NO_REASON = 0, 3, 4, 5
SAMPLE = ("tower", "factorial", "expansion", "long-number", "gcd-bomb", "megabyte")
SLOW = ("minus-flood", "unit-words", "factorial-flood")
PAYLOADS = [
    "__import__('pathlib').Path('{canary}').touch()",
    "open('{canary}', 'w')",
    "__import__('os').system('touch {canary}')",
    "exec(\"open('{canary}', 'w')\")",
    "(lambda: open('{canary}', 'w'))()",
    "[c for c in ().__class__.__base__.__subclasses__()] and open('{canary}', 'w')",
    "Symbol('x').__class__.__init__.__globals__['__builtins__']['open']('{canary}', 'w')",
    "1 if open('{canary}', 'w') else 7",
    "7 + 0*len(str(open('{canary}', 'w')))",
]
WRAPPERS = ["{}", r"\boxed{{{}}}", r"\boxed{{\text{{{}}}}}", "${}$", "$$7 = {}$$", "<answer>{}</answer>", "#### {}"]


@pytest.fixture(scope="module", autouse=True)
def _warm():
    mathematics.warm_up()


def judge_within_limits(row):
    """Judge in a process that may use `CPU_SECONDS` and `MEMORY_BYTES`, and exit with what came of it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        score = mathematics.judge(row.response, row.ground_truth)
    except (MemoryError, RecursionError):
        raise SystemExit(TOO_LARGE) from None
    if score.value or score.passed or score.error:
        raise SystemExit(REWARD)
    raise SystemExit(NOTHING if score.detail else NO_REASON)


def rows_of(table, complete):
    """Rows as parameters; those with an id of `complete` belong to the complete run only."""
    return [pytest.param(row, id=row.id, marks=[pytest.mark.complete] * (row.id in complete)) for row in table]


def test_rows_are_told_apart_and_say_why():
    assert len({row.id for row in TABLE}) == len(TABLE) >= 40
    assert all(row.why for row in TABLE)
    assert {row.id for row in COSTLY}.issuperset(SAMPLE)


@pytest.mark.parametrize("row", rows_of([row for row in TABLE if row not in COSTLY], complete=SLOW))
def test_no_reward_without_the_answer(row):
    try:
        score = mathematics.judge(row.response, row.ground_truth)
    except (MemoryError, RecursionError):  # scored 0 by whoever asks for the judgement
        return
    assert (score.value, score.passed, score.error) == (0.0, False, None)
    assert score.detail


@pytest.mark.parametrize("row", rows_of(COSTLY, complete={row.id for row in COSTLY}.difference(SAMPLE)))
def test_a_costly_response_earns_nothing_and_raises_nothing_but_what_it_is_too_large_for(row):
    # Not a fork: this process may have more than `MEMORY_BYTES` mapped, so that a fork could allocate nothing.
    process = multiprocessing.get_context("spawn").Process(target=judge_within_limits, args=(row,))
    process.start()
    process.join()
    assert process.exitcode in (NOTHING, TOO_LARGE, *OUT_OF_TIME)


def test_payloads_would_run_if_sympy_evaluated_them(tmp_path):
    canary = tmp_path / "canary"
    sympy.sympify(PAYLOADS[0].format(canary=canary))
    assert canary.exists()


@pytest.mark.parametrize("payload", PAYLOADS)
def test_code_in_an_answer_is_never_executed(tmp_path, payload):
    canary = tmp_path / "canary"
    code = payload.format(canary=canary)
    for wrapper in WRAPPERS:
        for reference in ("7", "x=7", r"\{1, 2\}", r"\text{Tuesday}", code):
            assert mathematics.judge(wrapper.format(code), reference).error is None
    assert not canary.exists()
