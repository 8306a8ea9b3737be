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
from tasks.verifiers import Score
from tasks.verifiers.chat.prompts import is_pairwise

KEPT_OUT = ""
"""Value of `Question.benchmark` for held-out prompts of the mixture, which do not belong to a benchmark."""


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
