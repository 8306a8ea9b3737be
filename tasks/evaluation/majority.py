"""Scores the answer that most of a prompt's samples give: majority@k, or self-consistency.

Samples vote with their answers, whatever words led to them, and the prompt counts as right if the answer with the most
votes is (Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning in Language Models",
arXiv:2203.11171, section 2, its majority vote). The paper leaves ties and samples without an answer open; they are
settled below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean


def majority(labels: Sequence[int | None], passed: Sequence[bool], k: int) -> float:
    """Return majority@k of one prompt: the chance that the answer with the most votes among k of its samples passes.

    With n samples, it is the mean over the floor(n / k) disjoint blocks of k successive samples; the rest is left out.
    Within a block, tied answers share the win evenly. A sample without an answer has no vote; where a block has no
    answer at all, it is wrong. A class whose samples differ in their verdicts counts by the share of them that pass.

    Args:
        labels: the class of equal answers of each sample (`answer_classes`), `[n]`; None for one without an answer.
        passed: the verdict on each sample, `[n]`, in the same order.
        k: number of samples that vote, from 1.

    Returns:
        A value in [0, 1]; NaN where the prompt has fewer than k samples.

    Raises:
        ValueError: k is below 1, or the two sequences differ in length.
    """
    if k < 1:
        raise ValueError(f"k must be 1 or more, got {k}")
    if len(labels) != len(passed):
        raise ValueError(f"{len(labels)} labels and {len(passed)} verdicts: want one of both for each sample")
    starts = range(0, len(labels) - k + 1, k)
    if not starts:
        return float("nan")
    return fmean(_winner(labels[start : start + k], passed[start : start + k]) for start in starts)


def answer_classes(answers: Sequence[str | None], equivalent: Callable[[str, str], bool]) -> list[int | None]:
    """Return the class of equal answers that each answer belongs to, numbered from 0 in the order of their first ones.

    The first answer of a class represents it: an answer belongs to the first class whose representative it is
    equivalent to, so that the result is well-defined for a relation that is not transitive, too. Equal texts are in one
    class without a call, so that no pair of an answer and a representative is asked about twice.

    Args:
        answers: the answers of one prompt's samples, in the order of sampling; None for a sample without an answer.
        equivalent: whether an answer, the first argument, is equivalent to a representative, the second, such as a
            verifier's own relation of an answer to a reference.
    """
    classes: dict[str, int] = {}
    representatives: list[str] = []
    for answer in answers:
        if answer is None or answer in classes:
            continue
        new = len(representatives)
        classes[answer] = next((i for i, first in enumerate(representatives) if equivalent(answer, first)), new)
        if classes[answer] == new:
            representatives.append(answer)
    return [None if answer is None else classes[answer] for answer in answers]


def _winner(labels: Sequence[int | None], passed: Sequence[bool]) -> float:
    """The mean over the answers with the most votes of the share of their samples that pass; 0 without an answer."""
    verdicts: dict[int, list[bool]] = defaultdict(list)
    for label, verdict in zip(labels, passed, strict=True):
        if label is not None:
            verdicts[label].append(verdict)
    most = max(map(len, verdicts.values()), default=0)
    return fmean([fmean(votes) for votes in verdicts.values() if len(votes) == most] or [0.0])
