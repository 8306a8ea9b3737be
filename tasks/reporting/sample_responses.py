"""Responses that a page shows of two policies to the same prompts, chosen by a fixed rule."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.excerpts.episodes import ShownEpisode
from tasks.reporting.formats import shorten

_RESPONSE_LIMIT = 1_500  # characters of a response that the report shows


def samples(before: pa.Table, after: pa.Table, prompts: pa.Table) -> list[dict[str, Any]]:
    """Return completions of both policies on the same prompts, chosen by a fixed rule.

    The three largest gains (one for each domain first), the two lowest-scoring prompts without a gain, and the largest
    loss; ties go to the smaller `prompt_id`. Each policy shows its first sample whose score is nearest to its mean.
    """
    judged = (_by_prompt(before), _by_prompt(after))
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
            "before": _side(before, judged[0][pair.prompt]),
            "after": _side(after, judged[1][pair.prompt]),
            "gain": pair.gain,
        }
        for verdict, pair in chosen
    ]


class _Pair(NamedTuple):
    """A prompt that both policies answered: its row, the difference of mean scores, and that of the second policy."""

    prompt: str
    domain: str
    row: int
    gain: float
    after: float


class _Scores:
    """The scores of a policy's judged rollouts of one prompt, by sample, and the rows in which they stand."""

    def __init__(self, scored: list[tuple[int, float, int]]) -> None:
        self.scored = sorted(scored)
        self.mean = statistics.fmean(score for _, score, _ in scored)


def _by_prompt(rollouts: pa.Table) -> dict[str, _Scores]:
    """Return the scores of judged rollouts by prompt; a response is read only once it is chosen."""
    scored: dict[str, list[tuple[int, float, int]]] = defaultdict(list)
    columns = (rollouts.column(name).to_pylist() for name in ("prompt_id", "sample", "score"))
    for row, (prompt, sample, score) in enumerate(zip(*columns, strict=True)):
        if score is not None:
            scored[prompt].append((sample, score, row))
    return {prompt: _Scores(listed) for prompt, listed in scored.items()}


def _side(rollouts: pa.Table, scores: _Scores) -> dict[str, Any]:
    """Return one policy's half of a sample: its scores, their mean, and the completion that stands for them."""
    _, _, row = min(scores.scored, key=lambda entry: abs(entry[1] - scores.mean))
    [nearest] = rollouts.slice(row, 1).to_pylist()
    return {
        "mean": scores.mean,
        "scores": [score for _, score, _ in scores.scored],
        "sample": nearest["sample"],
        "score": nearest["score"],
        "num_tokens": nearest["num_tokens"],
        "finish_reason": nearest["finish_reason"],
        "response": shorten(nearest["response"], _RESPONSE_LIMIT),
        "episode": ShownEpisode.of_row(nearest),
    }


def _spread(rows: Sequence[_Pair]) -> list[_Pair]:
    """Return the rows with the first of each domain in front, otherwise in their order."""
    first = {row.domain: row for row in reversed(rows)}
    return sorted(rows, key=lambda row: first[row.domain] is not row)
