"""Answers that the verifier reads in responses, and which of a prompt's answers are equal."""

import json

import pytest

from tasks.evaluation.answers import add_answers
from tasks.evaluation.comparison import compare
from tasks.evaluation.spec import ComparedBenchmark
from tasks.tables.parquet import build_table, validate
from tasks.tables.schemas import EVALUATION_ROLLOUTS, PROMPTS, ROLLOUTS
from tasks.verifiers import mathematics, open_pool
from tasks.verifiers.config import DEFAULTS

VERIFIERS = {"half": "math", "words": "chat_open"}


def prompts():
    rows = [
        {
            "prompt_id": name,
            "domain": "math",
            "source": "quiz",
            "row": row,
            "messages": [{"role": "user", "content": name}],
            "verifier": verifier,
            "ground_truth": json.dumps("1/2") if verifier == "math" else "null",
            "metadata": "{}",
            "cluster": None,
        }
        for row, (name, verifier) in enumerate(VERIFIERS.items())
    ]
    return build_table(rows, PROMPTS, "prompts")


def rollouts(prompt, *responses):
    rows = [
        {
            "prompt_id": prompt,
            "sample": sample,
            "response": text,
            "num_tokens": 3,
            "finish_reason": "stop",
            "score": float(right),
            "passed": right,
            "rewards": [],
            "error": None,
            "policy": "p",
        }
        for sample, text in enumerate(responses)
        for right in [mathematics.judge(text, "1/2").passed]
    ]
    return build_table(rows, ROLLOUTS, "rollouts")


HALVES = [r"\boxed{1/2}", r"so \boxed{0.5}", r"\boxed{2}", "I do not know", r"\boxed{\frac{4}{8}}", r"\boxed{2}"]


@pytest.fixture(scope="module")
def grouped():
    return add_answers(
        rollouts("half", *HALVES), prompts(), "quiz", grouped=True, open_pool=lambda: open_pool(1, DEFAULTS, ["math"])
    )


@pytest.mark.long
def test_equal_answers_are_one_class_by_the_verifiers_own_relation(grouped):
    validate(grouped, EVALUATION_ROLLOUTS, "answers")
    assert grouped["answer"].to_pylist() == ["1/2", "0.5", "2", None, r"\frac{4}{8}", "2"]
    assert grouped["answer_class"].to_pylist() == [0, 0, 1, None, 0, 1]


@pytest.mark.long
def test_majority_counts_equal_answers_together(grouped):
    # Of six samples three say a half and two say 2. Of the first two both are right, of the next two the only answer
    # is wrong, and of the last two the votes are tied: (1 + 0 + 1/2) / 3.
    votes = [ComparedBenchmark(name="quiz", majority=[2, 6])]
    table = compare({"p": grouped}, {"quiz": prompts()}, "p", votes).table
    figures = {row["metric"]: row["value"] for row in table.to_pylist()}
    assert (figures["majority@6"], figures["majority@2"]) == (1, pytest.approx(1 / 2))
    assert figures["no_answer"] == pytest.approx(1 / 6)


@pytest.mark.long
def test_only_math_has_answers_and_classes_only_where_they_are_asked_for():
    table = add_answers(rollouts("words", "hello"), prompts(), "quiz")
    assert (table["answer"].null_count, table["answer_class"].null_count) == (1, 1)
    table = add_answers(rollouts("half", r"\boxed{3}"), prompts(), "quiz")
    assert (table["answer"].to_pylist(), table["answer_class"].to_pylist()) == (["3"], [None])


@pytest.mark.long
def test_an_answer_within_thinking_is_none():
    thought = [r"<think>\boxed{1/2}", r"<think>\boxed{2}</think>\boxed{1/2}", r"\boxed{1/2}</think>"]
    table = add_answers(rollouts("half", *thought), prompts(), "quiz")
    assert table["answer"].to_pylist() == [None, "1/2", None]
    figures = {row["metric"]: row["value"] for row in compare({"p": table}, {"quiz": prompts()}, "p").table.to_pylist()}
    assert (figures["no_answer"], figures["pass_rate"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
