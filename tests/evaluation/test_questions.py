"""The questions of a benchmark with the responses of policies, and those whose pass rate changed."""

import pytest

from tasks.evaluation.questions import lines, questions
from tasks.failures import MistakeError
from tasks.tables.parquet import table_from_rows, write_table
from tasks.tables.schemas import EVALUATION_PROMPTS, EVALUATION_ROLLOUTS
from tests.evaluation.test_policy_comparison import rollouts

QUESTIONS = ("a", "b", "c")


@pytest.fixture
def run(tmp_path):
    """A run whose policies answered three questions: one gets better, one worse, and one was not judged at last."""
    prompts = [
        {
            "benchmark": "quiz",
            "prompt_id": name,
            "domain": "math",
            "source": "quiz",
            "row": row,
            "messages": [{"role": "user", "content": f"What is\n{name}?"}],
            "verifier": "math",
            "ground_truth": "null",
            "metadata": "{}",
            "cluster": None,
        }
        for row, name in enumerate(QUESTIONS)
    ]
    answers = [
        *rollouts("before", 10, "quiz", a=[0, 0, 1], b=[1], c=[0]).to_pylist(),
        *rollouts("after", 10, "quiz", a=[1, 1, 0], b=[0], c=[None]).to_pylist(),
    ]
    for name, rows, schema in (
        ("evaluation_prompts", prompts, EVALUATION_PROMPTS),
        ("evaluation_rollouts", [row | {"policy": _policy(i)} for i, row in enumerate(answers)], EVALUATION_ROLLOUTS),
    ):
        write_table(tmp_path / f"{name}.parquet", table_from_rows(rows, schema, name), schema)
    return tmp_path


def _policy(number):
    return "before" if number < 5 else "after"


def test_a_question_flips_where_its_pass_rate_changes(run):
    asked = questions(run, "quiz")
    pair = ("before", "after")
    assert [question.pass_rate("before") for question in asked] == pytest.approx([1 / 3, 1, 0])
    assert [[question.flips(pair, flip) for question in asked] for flip in ("better", "worse", "any")] == [
        [True, False, False],
        [False, True, False],
        [True, True, False],
    ]


def test_a_question_is_printed_with_the_commonest_verdict(run):
    first, *_, last = questions(run, "quiz")
    assert list(lines(first, ("before", "after"))) == [
        "a  row 0  What is a?",
        "  before: 1 of 3 pass: … words",
        "  after: 2 of 3 pass: … words",
    ]
    assert list(lines(last, ("after", "other"))) == [
        "c  row 2  What is c?",
        "  after: no judged response (judge unreachable)",
        "  other: no judged response",
    ]


def test_what_a_run_does_not_have_is_named(run, tmp_path):
    with pytest.raises(
        MistakeError, match=r"no benchmark is called 'quizz' \(did you mean 'quiz'\?\); there are: quiz"
    ):
        questions(run, "quizz")
    with pytest.raises(MistakeError, match=r"holds no evaluation_prompts\.parquet"):
        questions(tmp_path / "nowhere", "quiz")
