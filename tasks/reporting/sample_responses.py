"""Selects responses of two policies to the same prompts by a fixed rule, for the report."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.excerpts.episodes import ShownEpisode
from tasks.excerpts.texts import shorten

_RESPONSE_LIMIT, _REASON_LIMIT = 1_500, 300
"""Maximum number of characters of a response in the report, and of the verifier's reason for its score."""


def choose_samples(before: pa.Table, after: pa.Table, prompts: pa.Table) -> list[dict[str, Any]]:
    """Return completions of both policies on the same prompts, chosen by a fixed rule.

    The prompts are the three largest gains (one per domain first), the two lowest-scoring prompts without a gain, and
    the largest loss. Ties go to the smaller `prompt_id`. For each policy, the first sample whose score is closest to
    its mean is shown.
    """
    judged = (_collect_scores(before), _collect_scores(after))
    columns = (prompts.column(name).to_pylist() for name in ("prompt_id", "domain"))
    pairs = []
    for row, (prompt, domain) in enumerate(zip(*columns, strict=True)):
        if all(prompt in policy for policy in judged):
            first, second = (policy[prompt].mean for policy in judged)
            pairs.append(_Pair(prompt, domain, row, second - first, second))
    pairs.sort(key=lambda pair: pair.prompt)
    better = sorted((pair for pair in pairs if pair.gain > 0), key=lambda pair: -pair.gain)
    same = sorted((pair for pair in pairs if pair.gain == 0), key=lambda pair: pair.after)
    worse = sorted((pair for pair in pairs if pair.gain < 0), key=lambda pair: pair.gain)
    chosen = [("improved", pair) for pair in _spread(better)[:3]]
    chosen += [("unchanged", pair) for pair in same[:2]] + [("got worse", pair) for pair in worse[:1]]
    return [
        {
            "verdict": verdict,
            "prompt": prompts.slice(pair.row, 1).to_pylist()[0],
            "before": _make_side(before, judged[0][pair.prompt]),
            "after": _make_side(after, judged[1][pair.prompt]),
            "gain": pair.gain,
        }
        for verdict, pair in chosen
    ]


class _Pair(NamedTuple):
    """A prompt answered by both policies: its row, the difference of mean scores, and the second policy's mean."""

    prompt: str
    domain: str
    row: int
    gain: float
    after: float


class _Scores:
    """The scores of a policy's graded rollouts of one prompt, by sample, and their row numbers."""

    def __init__(self, scored: list[tuple[int, float, int]]) -> None:
        self.scored = sorted(scored)
        self.mean = statistics.fmean(score for _, score, _ in scored)


def _collect_scores(rollouts: pa.Table) -> dict[str, _Scores]:
    """Return the scores of graded rollouts by prompt. Responses are not read until they are chosen."""
    scored: dict[str, list[tuple[int, float, int]]] = defaultdict(list)
    columns = (rollouts.column(name).to_pylist() for name in ("prompt_id", "sample", "score"))
    for row, (prompt, sample, score) in enumerate(zip(*columns, strict=True)):
        if score is not None:
            scored[prompt].append((sample, score, row))
    return {prompt: _Scores(listed) for prompt, listed in scored.items()}


def _make_side(rollouts: pa.Table, scores: _Scores) -> dict[str, Any]:
    """Return one policy's half of a sample: its scores, their mean, and a representative completion with the reason."""
    _, _, row = min(scores.scored, key=lambda entry: abs(entry[1] - scores.mean))
    [nearest] = rollouts.slice(row, 1).to_pylist()
    return {
        "mean": scores.mean,
        "scores": [score for _, score, _ in scores.scored],
        "sample": nearest["sample"],
        "score": nearest["score"],
        "detail": nearest["detail"] and shorten(nearest["detail"], _REASON_LIMIT),
        "num_tokens": nearest["num_tokens"],
        "finish_reason": nearest["finish_reason"],
        "response": shorten(nearest["response"], _RESPONSE_LIMIT),
        "episode": ShownEpisode.from_row(nearest),
    }


def _spread(rows: Sequence[_Pair]) -> list[_Pair]:
    """Reorder the rows so that the first row of each domain comes first, and keep the order otherwise."""
    first = {row.domain: row for row in reversed(rows)}
    return sorted(rows, key=lambda row: first[row.domain] is not row)
