"""`math` against responses that want reward without an answer, or the judge's life."""

import pytest
import sympy

from tasks.verifiers import Call, mathematics
from tests.verifiers.adversarial_mathematics import TABLE

pytestmark = pytest.mark.long

GUARD_S = 300.0
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


@pytest.fixture(scope="module")
def scores(pool):
    """The scores of the whole table, judged side by side."""
    judged = pool.score_many([Call("math", row.response, row.ground_truth) for row in TABLE])
    return dict(zip((row.id for row in TABLE), judged, strict=True))


def test_rows_are_told_apart_and_say_why():
    assert len({row.id for row in TABLE}) == len(TABLE) >= 40
    assert all(row.why for row in TABLE)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)
def test_no_reward_without_the_answer(scores, row):
    score = scores[row.id]
    assert (score.value, score.passed, score.error) == (0.0, False, None)
    assert score.detail


def test_the_pool_judges_on_after_the_table(pool, scores):
    assert len(scores) == len(TABLE)
    assert pool.submit("math", r"\boxed{\frac{14}{2}}", "7").result(GUARD_S).passed


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
