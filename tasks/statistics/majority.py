"""Computes majority@k (self-consistency), the score of the most common answer among a prompt's samples.

Samples vote with their answers, regardless of their reasoning, and the prompt is correct if the answer with the most
votes is correct (Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning in Language Models",
arXiv:2203.11171, section 2, its majority vote). The paper does not define ties and samples without an answer; they are
defined below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from statistics import fmean


def majority(labels: Sequence[int | None], passed: Sequence[bool], k: int) -> float:
    """Return majority@k of one prompt: the probability that the answer with the most votes among k samples passes.

    With n samples, it is the mean over the floor(n / k) disjoint blocks of k consecutive samples; the rest is not used.
    Within a block, tied answers share the win equally. A sample without an answer has no vote; a block without any
    answer is wrong. If the samples of a class do not all pass or all fail, the class counts by its share of passing
    samples.

    Args:
        labels: the class of equal answers of each sample (`answer_classes`), `[n]`, with None for a sample without an
            answer.
        passed: True for each sample that passes, `[n]`, in the same order.
        k: number of samples that vote, at least 1.

    Returns:
        A value in [0, 1], or NaN if the prompt has fewer than k samples.

    Raises:
        ValueError: k is below 1, or the two sequences differ in length.
    """
    if k < 1:
        raise ValueError(f"k must be 1 or more, got {k}")
    if len(labels) != len(passed):
        raise ValueError(f"{len(labels)} labels and {len(passed)} verdicts: expected one of each per sample")
    starts = range(0, len(labels) - k + 1, k)
    if not starts:
        return float("nan")
    return fmean(_score_winner(labels[start : start + k], passed[start : start + k]) for start in starts)


async def answer_classes(
    answers: Sequence[str | None], equivalent: Callable[[str, str], Awaitable[bool]]
) -> list[int | None]:
    """Return the class of equal answers of each answer, numbered from 0 by first occurrence.

    The first answer of a class represents it: an answer belongs to the first class whose representative it is
    equivalent to, so that the result is also well-defined if the relation is not transitive. Equal texts are in one
    class without a call, so that no pair of an answer and a representative is compared twice.

    Args:
        answers: the answers of one prompt's samples, in the order of sampling, with None for a sample without an
            answer.
        equivalent: returns True if an answer (first argument) is equivalent to a representative (second argument), for
            example a verifier's comparison of an answer with a reference.
    """
    classes: dict[str, int] = {}
    representatives: list[str] = []
    for answer in answers:
        if answer is None or answer in classes:
            continue
        for number, first in enumerate(representatives):
            if await equivalent(answer, first):
                classes[answer] = number
                break
        else:
            classes[answer] = len(representatives)
            representatives.append(answer)
    return [None if answer is None else classes[answer] for answer in answers]


def _score_winner(labels: Sequence[int | None], passed: Sequence[bool]) -> float:
    """Return the mean pass rate of the answers with the most votes, or 0 without an answer."""
    verdicts: dict[int, list[bool]] = defaultdict(list)
    for label, verdict in zip(labels, passed, strict=True):
        if label is not None:
            verdicts[label].append(verdict)
    most = max(map(len, verdicts.values()), default=0)
    return fmean([fmean(votes) for votes in verdicts.values() if len(votes) == most] or [0.0])
