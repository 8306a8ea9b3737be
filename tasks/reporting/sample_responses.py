"""Responses that a page shows of two policies to the same prompts, chosen by a fixed rule."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tasks.reporting.formats import shorten

_RESPONSE_LIMIT = 1_500  # characters of a response that the report shows


def samples(before: pa.Table, after: pa.Table, prompts: pa.Table) -> list[dict[str, Any]]:
    """Return completions of both policies on the same prompts, chosen by a fixed rule.

    The three largest gains (one for each domain first), the two lowest-scoring prompts without a gain, and the largest
    loss; ties go to the smaller `prompt_id`. Each policy shows its first sample whose score is nearest to its mean.
    """
    judged = [_by_prompt(before), _by_prompt(after)]
    rows = []
    for prompt in sorted(prompts.to_pylist(), key=lambda prompt: prompt["prompt_id"]):
        pair = [policy.get(prompt["prompt_id"]) for policy in judged]
        if pair[0] and pair[1]:
            sides = [_side(rollouts) for rollouts in pair if rollouts]
            rows.append({"prompt": prompt, "before": sides[0], "after": sides[1], "gain": _gain(sides)})
    better = sorted((row for row in rows if row["gain"] > 0), key=lambda row: -row["gain"])
    same = sorted((row for row in rows if row["gain"] == 0), key=lambda row: row["after"]["mean"])
    worse = sorted((row for row in rows if row["gain"] < 0), key=lambda row: row["gain"])
    chosen = [("improved", row) for row in _spread(better)[:3]]
    chosen += [("unchanged", row) for row in same[:2]] + [("got worse", row) for row in worse[:1]]
    return [{"verdict": verdict, **row} for verdict, row in chosen]


def _by_prompt(rollouts: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Return the judged rollouts by prompt, in the order of their samples."""
    judged: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rollouts.to_pylist():
        if row["score"] is not None:
            judged[row["prompt_id"]].append(row)
    return {prompt: sorted(rows, key=lambda row: row["sample"]) for prompt, rows in judged.items()}


def _side(rollouts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one policy's half of a sample: its scores, their mean, and the completion that stands for them."""
    mean = statistics.fmean(row["score"] for row in rollouts)
    nearest = min(rollouts, key=lambda row: abs(row["score"] - mean))
    return {
        "mean": mean,
        "scores": [row["score"] for row in rollouts],
        "sample": nearest["sample"],
        "score": nearest["score"],
        "num_tokens": nearest["num_tokens"],
        "finish_reason": nearest["finish_reason"],
        "response": shorten(nearest["response"], _RESPONSE_LIMIT),
    }


def _gain(sides: Sequence[Mapping[str, Any]]) -> float:
    return sides[1]["mean"] - sides[0]["mean"]


def _spread(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the first of each domain in front, otherwise in their order."""
    first = {row["prompt"]["domain"]: row for row in reversed(rows)}
    return sorted(rows, key=lambda row: first[row["prompt"]["domain"]] is not row)
