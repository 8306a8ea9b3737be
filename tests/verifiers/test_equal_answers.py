"""Classes of equal answers to a math prompt, by the prompt's own verifier."""

import asyncio

import pytest

from tasks.verifiers import registry
from tasks.verifiers.equal_answers import group_equal_answers


async def score(verifier, response, ground_truth):
    return registry.judge(verifier, response, ground_truth, None)


@pytest.mark.parametrize(
    ("truth", "answers", "classes"),
    [
        ("1/2", ["1/2", None, "0.5", "\\frac{1}{2}", "2"], [0, None, 0, 0, 1]),
        ({"answer": "12", "mode": "gsm8k"}, ["12", "12.0", "13", "I do not know"], [0, 0, 1, 2]),
    ],
)
def test_answers_are_equal_if_the_prompts_verifier_says_so(truth, answers, classes):
    assert asyncio.run(group_equal_answers(answers, truth, score)) == classes
