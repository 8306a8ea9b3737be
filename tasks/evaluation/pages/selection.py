"""Selects the questions and the responses on the page of a benchmark, if it cannot show all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.evaluation.questions import Question

MOST_RESPONSES = 4_000
"""Maximum number of responses on a page, unless the first question has more."""
PER_VERDICT = 4
"""Maximum number of responses of a policy with the same verdict that a question shows."""

Pair = tuple[str, str]
"""A policy and its baseline."""
Change = Literal["better", "worse", "same", "unknown"]
"""Change of a question's pass rate between two policies; `unknown` if one of them has no scored response."""
Verdict = Literal["passes", "fails", "unjudged"]


@dataclass(frozen=True)
class Shown:
    """A question on a page.

    Attributes:
        number: its position in the benchmark, from 1.
        question: the question.
        changes: the change of its pass rate, by pair.
        responses: the rows of the responses on the page by policy, sorted by sample.
    """

    number: int
    question: Question
    changes: Mapping[Pair, Change]
    responses: Mapping[str, Sequence[Mapping[str, Any]]]

    @property
    def left_out(self) -> int:
        """The number of responses that are not shown."""
        return sum(map(len, self.question.responses.values())) - sum(map(len, self.responses.values()))


@dataclass(frozen=True)
class Selection:
    """The part of a benchmark that is on its page.

    Attributes:
        shown: the questions, in the benchmark's order.
        changes: the number of questions with each change by pair, including questions that are not shown.
        questions_left_out: the number of questions that are not shown.
        responses_left_out: the number of responses to shown questions that are not shown.
    """

    shown: Sequence[Shown]
    changes: Mapping[Pair, Counter[Change]]
    questions_left_out: int
    responses_left_out: int

    def rows(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the policy and the row of every response on the page."""
        for shown in self.shown:
            for policy, rows in shown.responses.items():
                for row in rows:
                    yield policy, row


def verdict_of(row: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a response."""
    if row["passed"] is None:
        return "unjudged"
    return "passes" if row["passed"] else "fails"


def select(questions: Sequence[Question], policies: Sequence[str], pairs: Sequence[Pair]) -> Selection:
    """Select what a page shows: questions with a changed pass rate first, and some responses of each policy.

    The responses to a question are the first `PER_VERDICT` of each policy and verdict.

    Args:
        questions: the questions of the benchmark, in order.
        policies: names of the policies, in the order on the page.
        pairs: the policies that are compared.
    """
    known = []
    for number, question in enumerate(questions, 1):
        changes = {(policy, baseline): _change(question, policy, baseline) for policy, baseline in pairs}
        responses = {policy: _some(question.responses.get(policy, ())) for policy in policies}
        known.append(Shown(number, question, changes, responses))
    shown: list[Shown] = []
    room = MOST_RESPONSES
    for one in sorted(known, key=_is_unchanged):
        needed = max(1, sum(map(len, one.responses.values())))
        if shown and needed > room:
            break
        shown.append(one)
        room -= needed
    return Selection(
        shown=sorted(shown, key=lambda one: one.number),
        changes={pair: Counter(one.changes[pair] for one in known) for pair in pairs},
        questions_left_out=len(known) - len(shown),
        responses_left_out=sum(one.left_out for one in shown),
    )


def _change(question: Question, policy: str, baseline: str) -> Change:
    if question.flips((baseline, policy), "better"):
        return "better"
    if question.flips((baseline, policy), "worse"):
        return "worse"
    return "unknown" if None in (question.pass_rate(policy), question.pass_rate(baseline)) else "same"


def _is_unchanged(shown: Shown) -> bool:
    return not {"better", "worse"} & set(shown.changes.values())


def _some(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the first rows of each verdict, in order."""
    so_far: Counter[str] = Counter()
    chosen = []
    for row in rows:
        verdict = verdict_of(row)
        so_far[verdict] += 1
        if so_far[verdict] <= PER_VERDICT:
            chosen.append(row)
    return chosen
