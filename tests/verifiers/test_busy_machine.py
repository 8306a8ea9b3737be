"""A verdict depends on the response, never on how busy the machine is."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tasks.verifiers import Call, VerifierPool, VerifiersConfig
from tests.verifiers.processes import HANG

pytestmark = [pytest.mark.long, pytest.mark.complete]  # its busy processes slow down whatever runs beside it

NO_COMMA = {"instruction_ids": ["punctuation:no_comma"], "kwargs": [{}]}
CONFIG = VerifiersConfig(time_limit_seconds=1.0, cache_entries=0, code={"test_seconds": 0.5, "total_seconds": 1.0})


@contextmanager
def all_cores_busy():
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    yield
    for program in spinning:
        program.kill()
        program.wait()


def program(body, *tests):
    return Call("code", f"```python\ndef f(n):\n    {body}\n```", {"tests": list(tests) or ["assert f(3) == 3"]})


CALLS = [
    *(Call("math", rf"\boxed{{x^2 + {i}}}", f"{i + i % 2} + x^2") for i in range(10)),
    *(Call("precise_if", f"Response {i}{', or not' * (i % 2)}.", NO_COMMA) for i in range(10)),
    *(program(f"return n + {i % 2}  # {i}") for i in range(10)),
    program("return [n for _ in range(1_000_000)][-1]"),
    program("import time; time.sleep(0.3); return n"),
    program("while n == 2: pass\n    return n", "assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3"),
    program("import time; time.sleep(60)"),
    program("while True: pass"),
    Call("math", HANG, "7"),
    Call("math", r"\boxed{x^{20}+x^{7}+3x+1=0}", "x = 1"),
]


def test_verdicts_are_the_same_on_an_idle_machine_and_on_a_busy_one():
    with VerifierPool(2, CONFIG) as pool:
        idle = pool.score_many(CALLS)
        with all_cores_busy():
            busy = pool.score_many(CALLS)
    assert [score.error for score in idle] == [None] * len(CALLS)
    assert busy == idle
    assert [score.value for score in idle[:30]] == [1.0, 0.0] * 15
    assert [score.passed for score in idle[30:]] == [True, True, False, False, False, False, False]
    assert idle[32].value == pytest.approx(2 / 3)
