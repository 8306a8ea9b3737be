"""The figures of a validation, worked by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tasks.generation.config import SamplingConfig
from tasks.generation.interface import Completion, VersionSpan
from tasks.statistics.intervals import estimate_rate
from tasks.training.control.validation_figures import KEPT_OUT, Answer, Question, summary
from tasks.training.groups.group import Prompt
from tasks.verifiers import Reward, Score


def question(number, benchmark=KEPT_OUT, domain="math"):
    prompt = Prompt(f"{benchmark}{number}", domain, [], "math", "1", [1])
    return Question(prompt, SamplingConfig(samples=2), benchmark)


def answer(question, value, truncated=False, rewards=()):
    completion = Completion("", [1], [0.0], "length" if truncated else "stop", [VersionSpan(0, 0, 1)])
    return Answer(question, completion, Score(value, value == 1.0, "", rewards=rewards))


def answers(question, *values):
    return [answer(question, value) for value in values]


def test_a_prompt_counts_once_however_many_of_its_responses_were_judged():
    first, second = question(1), question(2)
    figures = summary([first, second], [*answers(first, 1.0, 1.0), *answers(second, 0.0)])
    interval = estimate_rate(np.array([1.0, 0.0]), 3)
    assert figures == {
        "score": 0.5,
        "low": interval.low,
        "high": interval.high,
        "pass_rate": 0.5,
        "pass_at_k": 0.5,
        "truncated": 0.0,
    }


def test_policies_that_pass_all_or_have_one_prompt_keep_an_interval():
    first, second = question(1), question(2)
    figures = summary([first, second], [*answers(first, 1.0, 1.0), *answers(second, 1.0, 1.0)])
    assert figures["low"] < figures["score"] == figures["high"] == 1.0
    figures = summary([first], answers(first, 1.0, 0.0))
    assert (figures["low"], figures["score"], figures["high"]) == (0.0, 0.5, 1.0)


def test_a_benchmark_has_figures_of_its_own_and_the_score_stays_that_of_the_prompts_kept_out():
    kept_out, easy, hard = question(1), question(1, "sums"), question(2, "sums")
    judged = [*answers(kept_out, 1.0), *answers(easy, 1.0, 1.0), answer(hard, 0.0, truncated=True), *answers(hard, 0.0)]
    figures = summary([kept_out, easy, hard], judged)
    assert (figures["score"], figures["truncated"]) == (1.0, 0.0)
    assert figures["benchmarks/sums/score"] == figures["benchmarks/sums/pass_rate"] == 0.5
    interval = estimate_rate(np.array([1.0, 0.0]), 4)
    assert (figures["benchmarks/sums/low"], figures["benchmarks/sums/high"]) == (interval.low, interval.high)
    assert figures["benchmarks/sums/truncated"] == 0.25


def test_a_benchmark_has_avg_pass_and_majority_at_k():
    # DAPO, figure 1, on three questions of 4 samples: passed, class of equal answers.
    samples = [
        [(True, 0), (True, 0), (False, 1), (False, 2)],  # two votes for the right answer: the majority
        [(True, 0), (False, 1), (False, 1), (False, None)],  # one correct answer, outvoted
        [(False, 0), (False, 0), (False, None), (False, None)],
    ]
    asked = [replace(question(number, "sums"), has_majority=True) for number in range(3)]
    judged = [
        replace(answer(each, float(passed)), answer_class=label)
        for each, group in zip(asked, samples, strict=True)
        for passed, label in group
    ]
    figures = summary(asked, judged)
    assert figures["benchmarks/sums/pass_rate"] == pytest.approx((2 / 4 + 1 / 4 + 0) / 3)
    assert figures["benchmarks/sums/pass_at_k"] == pytest.approx(2 / 3)
    assert figures["benchmarks/sums/majority_at_k"] == pytest.approx(1 / 3)
    assert "benchmarks/sums/majority_at_k" not in summary([question(1, "sums")], answers(question(1, "sums"), 1.0))


def test_a_single_sample_has_no_pass_at_k():
    once = replace(question(1), sampling=SamplingConfig(samples=1))
    assert "pass_at_k" not in summary([once], answers(once, 1.0))


def test_comparisons_have_a_win_rate():
    compared = Prompt("p", "chat", [], "chat", {"reference": "Hello!", "mode": "pairwise"}, [1])
    asked = Question(compared, SamplingConfig(samples=1), "alpaca")
    figures = summary([asked], answers(asked, 0.75))
    assert figures["benchmarks/alpaca/win_rate"] == 0.75
    assert "benchmarks/sums/win_rate" not in summary([question(1, "sums")], answers(question(1, "sums"), 1.0))


def test_without_prompts_kept_out_the_score_is_the_mean_over_benchmarks():
    sums, words = [question(number, "sums") for number in range(3)], [question(1, "words")]
    judged = [part for each, value in zip(sums, (1.0, 0.0, 0.5), strict=True) for part in answers(each, value)]
    figures = summary([*sums, *words], [*judged, *answers(words[0], 1.0)])
    assert figures["score"] == pytest.approx((0.5 + 1.0) / 2)
    assert figures["pass_rate"] == pytest.approx((1 / 3 + 1) / 2)
    sums_low, words_low = (figures[f"benchmarks/{name}/low"] for name in ("sums", "words"))
    assert words_low == 0, "of one question"
    assert figures["low"] == pytest.approx(0.75 - math.hypot(0.5 - sums_low, 1 - words_low) / 2)


def test_a_score_that_would_be_over_other_questions_than_those_of_other_versions_is_none():
    kept_out, sums, words = question(1), question(1, "sums"), question(1, "words")
    assert summary([kept_out, sums], answers(sums, 1.0)) is None
    assert summary([sums, words], answers(sums, 1.0)) is None
    assert "benchmarks/sums/score" not in summary([kept_out, sums], answers(kept_out, 1.0))


def test_several_domains_have_figures_of_their_own():
    math_, code = question(1), question(2, domain="code")
    figures = summary([math_, code], [*answers(math_, 1.0), *answers(code, 0.0)])
    assert {name: value for name, value in figures.items() if name.startswith("domains/")} == {
        "domains/code/score": 0.0,
        "domains/code/pass_rate": 0.0,
        "domains/math/score": 1.0,
        "domains/math/pass_rate": 1.0,
    }


def test_a_reward_that_does_not_apply_is_in_no_mean():
    one = question(1)
    rewards = (Reward("mine.f", 0.5, -2.0), Reward("mine.never", 1.0, None))
    figures = summary([one], [answer(one, 1.0, rewards=rewards)])
    assert figures["rewards/mine.f/mean"] == -2.0
    assert "rewards/mine.never/mean" not in figures
