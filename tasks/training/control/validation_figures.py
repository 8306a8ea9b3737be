"""Computes the metrics of a validation, over held-out prompts of the mixture and over benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.generation.config import SamplingConfig
from tasks.generation.interface import Completion
from tasks.statistics.intervals import Estimate, estimate_mean_of_rates, estimate_score
from tasks.statistics.majority import majority
from tasks.training.groups.group import Prompt
from tasks.training.runtime.metric import Metric
from tasks.verifiers import Score
from tasks.verifiers.chat.prompts import is_pairwise

KEPT_OUT = ""
"""Value of `Question.benchmark` for held-out prompts of the mixture, which do not belong to a benchmark."""

VALIDATION = (
    Metric("validation/score", "", "mean over prompts of the mean score of their responses; see below for benchmarks"),
    Metric("validation/low", "", "lower bound of that score's 95% interval, as in the evaluation"),
    Metric("validation/high", "", "upper bound of that interval"),
    Metric("validation/pass_rate", "share", "mean over prompts of the share of their responses that pass"),
    Metric(
        "validation/pass_at_k",
        "share",
        "prompts with a correct response among k, if k is 2 or more",
    ),
    Metric("validation/truncated", "share of responses", "responses that were cut off at `max_tokens`"),
    Metric("validation/rewards/<name>/mean", "", "mean of one of several rewards over responses, before its weight"),
    Metric("validation/domains/<domain>/score", "", "the score over the prompts of one of several domains"),
    Metric("validation/domains/<domain>/pass_rate", "share", "the pass rate over these prompts"),
    Metric("validation/benchmarks/<name>/score", "", "the score over the questions of a benchmark"),
    Metric("validation/benchmarks/<name>/low", "", "lower bound of that score's 95% interval"),
    Metric("validation/benchmarks/<name>/high", "", "upper bound of that interval"),
    Metric("validation/benchmarks/<name>/pass_rate", "share", "the pass rate over these questions: avg@k"),
    Metric("validation/benchmarks/<name>/pass_at_k", "share", "as above, of this benchmark: pass@k"),
    Metric(
        "validation/benchmarks/<name>/majority_at_k",
        "share",
        "questions whose most common answer among k is correct: majority@k (cons@k), of a benchmark with `majority`",
    ),
    Metric(
        "validation/benchmarks/<name>/win_rate",
        "share",
        "win rate over the reference answers, with half of the ties, of a benchmark in mode `pairwise`",
    ),
    Metric("validation/benchmarks/<name>/truncated", "share of responses", "as above, of this benchmark"),
    Metric("validation/unanswered", "responses", "responses that could not be generated or scored"),
    Metric("validation/version", "steps", "optimizer steps that the validated policy has taken"),
    Metric("validation/seconds", "s", "time from the beginning to the end of the validation"),
)
"""Metrics of validation, logged at the steps after which a validation has ended. Those before `rewards` are computed
over the held-out prompts of the mixture. If there are none, they are the means over benchmarks."""


@dataclass(frozen=True, eq=False)
class Question:
    """A prompt that policies answer in validation.

    Attributes:
        prompt: the prompt.
        sampling: sampling options, including the number of responses and the base of their seeds.
        benchmark: name of its benchmark, or `KEPT_OUT` for a prompt of the mixture.
        has_majority: True if equal answers are counted, for majority@k.
    """

    prompt: Prompt
    sampling: SamplingConfig
    benchmark: str = KEPT_OUT
    has_majority: bool = False


@dataclass(frozen=True)
class Answer:
    """A response to a validation question, with its score.

    Attributes:
        answer_class: class of its answer among equal answers to the question, or None without an answer. Only for
            questions with `has_majority`.
    """

    question: Question
    completion: Completion
    score: Score
    answer_class: int | None = None


def summary(asked: Sequence[Question], judged: Sequence[Answer]) -> dict[str, float] | None:
    """Return the metrics of a validation by name, without their common prefix `validation/`.

    Args:
        asked: all questions.
        judged: responses with a score.

    Returns:
        The metrics, or None if the score could not be compared with other versions: no held-out prompt has a scored
        response or, without held-out prompts, a benchmark has none.
    """
    benchmarks = dict.fromkeys(question.benchmark for question in asked if question.benchmark != KEPT_OUT)
    answered = _split_by_key(judged, lambda question: question.benchmark)
    kept_out = answered.get(KEPT_OUT, [])
    by_benchmark = {name: _compute_figures(answered[name]) for name in benchmarks if name in answered}
    if any(question.benchmark == KEPT_OUT for question in asked):
        if not kept_out:
            return None
        overall = _compute_figures(kept_out)
    elif not benchmarks or len(by_benchmark) < len(benchmarks):
        return None
    else:
        overall = _compute_mean(list(by_benchmark.values()))
    return {
        **overall.to_metrics(),
        **_compute_reward_means(kept_out),
        **_compute_domain_metrics(kept_out),
        **{
            f"benchmarks/{name}/{key}": value
            for name, part in by_benchmark.items()
            for key, value in {**part.to_metrics(), **_compute_benchmark_metrics(answered[name])}.items()
        },
    }


def _split_by_key(answers: Sequence[Answer], key: Callable[[Question], str]) -> dict[str, list[Answer]]:
    """Return the answers by a key of their questions."""
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(key(answer.question), []).append(answer)
    return groups


@dataclass(frozen=True)
class _Figures:
    """The score of at least one answer with its interval, the pass rate, and the share of truncated responses.

    Attributes:
        pass_at_k: share of prompts with a correct response, or None if each prompt has one response.
    """

    score: Estimate
    pass_rate: float
    pass_at_k: float | None
    truncated: float

    def to_metrics(self) -> dict[str, float]:
        """Return the metrics by name."""
        bounds = {"score": self.score.value, "low": self.score.low, "high": self.score.high}
        several = {} if self.pass_at_k is None else {"pass_at_k": self.pass_at_k}
        return {**bounds, "pass_rate": self.pass_rate, **several, "truncated": self.truncated}


def _compute_figures(answers: Sequence[Answer]) -> _Figures:
    by_prompt = _split_by_key(answers, lambda question: question.prompt.prompt_id)
    scores = [statistics.fmean(answer.score.value for answer in group) for group in by_prompt.values()]
    passed = [statistics.fmean(answer.score.passed for answer in group) for group in by_prompt.values()]
    return _Figures(
        estimate_score(np.array(scores), len(answers)),
        statistics.fmean(passed),
        statistics.fmean(rate > 0 for rate in passed) if answers[0].question.sampling.samples > 1 else None,
        statistics.fmean(answer.completion.truncated for answer in answers),
    )


def _compute_mean(figures: Sequence[_Figures]) -> _Figures:
    """Return the means of the metrics over benchmarks, which are independent."""
    several: list[Any] = [part.pass_at_k for part in figures]
    return _Figures(
        estimate_mean_of_rates([part.score for part in figures]),
        statistics.fmean(part.pass_rate for part in figures),
        None if None in several else statistics.fmean(several),
        statistics.fmean(part.truncated for part in figures),
    )


def _compute_benchmark_metrics(answers: Sequence[Answer]) -> dict[str, float]:
    """Return the metrics that only some benchmarks have: majority@k, and the win rate of comparisons."""
    asked = answers[0].question
    figures = {}
    if asked.has_majority:
        groups = _split_by_key(answers, lambda question: question.prompt.prompt_id).values()
        figures["majority_at_k"] = statistics.fmean(
            majority([each.answer_class for each in group], [each.score.passed for each in group], len(group))
            for group in groups
        )
    if is_pairwise(asked.prompt.ground_truth):
        figures["win_rate"] = _compute_figures(answers).score.value
    return figures


def _compute_reward_means(answers: Sequence[Answer]) -> dict[str, float]:
    """Return the mean of each reward by name, over the answers that have it."""
    values: dict[str, list[float]] = {}
    for part in (part for answer in answers for part in answer.score.rewards):
        if part.value is not None:
            values.setdefault(part.name, []).append(part.value)
    return {f"rewards/{name}/mean": statistics.fmean(items) for name, items in sorted(values.items())}


def _compute_domain_metrics(answers: Sequence[Answer]) -> dict[str, float]:
    """Return score and pass rate by domain, or an empty dict if there is only one domain."""
    domains = _split_by_key(answers, lambda question: question.prompt.domain)
    if len(domains) < 2:
        return {}
    figures = {name: _compute_figures(domains[name]).to_metrics() for name in sorted(domains)}
    return {f"domains/{name}/{key}": part[key] for name, part in figures.items() for key in ("score", "pass_rate")}
