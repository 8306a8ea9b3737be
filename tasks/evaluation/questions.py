"""Reads one benchmark of a run's evaluation: each question with the responses of every policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tasks.config.loading import check_choice
from tasks.evaluation.runs import read_table
from tasks.excerpts.episodes import TERMINAL_CHARS, TERMINAL_TURNS, ShownEpisode
from tasks.excerpts.texts import Excerpt, first_chars

Flip = Literal["better", "worse", "any"]
"""The direction in which a question's pass rate changes from one policy to another."""

QUESTION_CHARS, RESPONSE_CHARS, REASON_CHARS = 300, 200, 80
"""Maximum number of printed characters of a question, of the end of a response, and of the verifier's detail."""
WORST_CHARS = 2_000
"""Maximum number of printed characters of one of the worst responses, half of them from each end."""


@dataclass(frozen=True)
class Question:
    """A question with its responses.

    Attributes:
        prompt: its row of `EVALUATION_PROMPTS`.
        responses: its rows of `EVALUATION_ROLLOUTS` by policy, sorted by sample.
    """

    prompt: Mapping[str, Any]
    responses: Mapping[str, Sequence[Mapping[str, Any]]]

    def pass_rate(self, policy: str) -> float | None:
        """Return the share of a policy's scored responses that pass, or None if none was scored."""
        verdicts = [row["passed"] for row in self.responses.get(policy, ()) if row["passed"] is not None]
        return sum(verdicts) / len(verdicts) if verdicts else None

    def has_flip(self, policies: tuple[str, str], flip: Flip) -> bool:
        """Return True if the pass rate changes from the first policy to the second in this direction."""
        first, second = (self.pass_rate(policy) for policy in policies)
        if first is None or second is None:
            return False
        return first != second if flip == "any" else second > first if flip == "better" else second < first


def read_questions(run: Path, benchmark: str) -> list[Question]:
    """Return the questions of a benchmark in order, with the responses of all policies.

    Args:
        run: the folder of a run, such as `outputs/latest`.
        benchmark: the name of the benchmark; `heldout` for the held-out prompts of the mixture.

    Raises:
        MistakeError: the folder has no such tables, or the run did not evaluate this benchmark.
    """
    prompts, rollouts = (read_table(run, name) for name in ("evaluation_prompts", "evaluation_rollouts"))
    check_choice(benchmark, set(prompts["benchmark"].to_pylist()), f"{run}: --benchmark", "benchmark")
    return join_responses(*(table.filter(pc.equal(table["benchmark"], benchmark)) for table in (prompts, rollouts)))


def join_responses(prompts: pa.Table, rollouts: pa.Table) -> list[Question]:
    """Return the questions of one benchmark, in the order of `prompts`, with the rows of `rollouts` of all policies.

    Args:
        prompts: a table of `PROMPTS`, or a table that extends it.
        rollouts: a table of `EVALUATION_ROLLOUTS` of only this benchmark; unused columns may be missing.
    """
    answered: defaultdict[str, defaultdict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rollouts.to_pylist():
        answered[row["prompt_id"]][row["policy"]].append(row)
    return [
        Question(
            prompt,
            {
                policy: sorted(rows, key=lambda row: row["sample"])
                for policy, rows in answered[prompt["prompt_id"]].items()
            },
        )
        for prompt in prompts.to_pylist()
    ]


def format_question(question: Question, policies: Sequence[str]) -> Iterator[str]:
    """Yield lines of text with a question and one response of each policy: the first with the majority verdict."""
    yield _format_title(question)
    for policy in policies:
        rows = question.responses.get(policy, ())
        judged = [row for row in rows if row["passed"] is not None]
        if not judged:
            yield f"  {policy}: no scored response" + (f" ({rows[0]['error']})" if rows else "")
            continue
        passes = sum(row["passed"] for row in judged)
        shown = next(row for row in judged if row["passed"] == (2 * passes >= len(judged)))
        answer = "" if shown["answer"] is None else f", answer {first_chars(shown['answer'], 40)}"
        reason = "" if shown["detail"] is None else f" ({first_chars(shown['detail'], REASON_CHARS)})"
        passing = f"  {policy}: {passes} of {len(judged)} pass; sample {shown['sample']}{answer}{reason}"
        if episode := ShownEpisode.from_row(shown, TERMINAL_TURNS, TERMINAL_CHARS):
            yield passing
            yield from episode.lines("    ")
        else:
            yield f"{passing}: {_end(shown['response'], RESPONSE_CHARS)}"


def worst(asked: Sequence[Question], policy: str) -> list[tuple[Question, Mapping[str, Any]]]:
    """Return the scored responses of a policy with their questions: lowest scores first, then by prompt and sample."""
    scored = [
        (question, row) for question in asked for row in question.responses.get(policy, ()) if row["score"] is not None
    ]
    return sorted(scored, key=lambda pair: (pair[1]["score"], pair[1]["prompt_id"], pair[1]["sample"]))


def format_response(question: Question, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines of text with a question, and one response to it with its score and the verifier's reason."""
    yield _format_title(question)
    reason = "" if row["detail"] is None else f" ({first_chars(row['detail'], QUESTION_CHARS)})"
    yield f"  {row['policy']}: score {row['score']:g}; sample {row['sample']}{reason}"
    if episode := ShownEpisode.from_row(row, TERMINAL_TURNS, TERMINAL_CHARS):
        yield from episode.lines("    ")
        return
    excerpt = Excerpt.from_text(row["response"], WORST_CHARS)
    text = f"{excerpt.head} […] {excerpt.tail}" if excerpt.left_out else excerpt.head
    yield from (f"    {line}" for line in text.splitlines() or ["(empty response)"])


def _format_title(question: Question) -> str:
    prompt = question.prompt
    asked = first_chars(prompt["messages"][-1]["content"], QUESTION_CHARS)
    return f"{prompt['prompt_id'][:8]}  {prompt['source']} row {prompt['row']}  {asked}"


def _end(text: str, most: int) -> str:
    """Return a text as one line, or its last words if it has more than `most` characters."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    last = line[-most:]
    return f"[…] {last if line[-most - 1] == ' ' else last.partition(' ')[2] or last}"
