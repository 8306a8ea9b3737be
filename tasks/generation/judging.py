"""Responses into scored rollouts: each is judged once, by the same verifiers as in training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from tasks.failures import MistakeError
from tasks.generation.rollout_cache import RolloutCache, verdict, verdicts_of
from tasks.tables.schemas import ROLLOUTS
from tasks.verifiers import (
    VerifierPool,
    VerifiersConfig,
    check_ground_truth,
    missing_resources,
    open_pool,
    verifiers_of,
)
from tasks.verifiers.calls import Call
from tasks.verifiers.config import DEFAULTS

Judged = Callable[[Mapping[str, Any]], None]
"""Takes the `prompt_id` and the `score` of a response that was judged; None where it could not be."""


class RolloutError(MistakeError):
    """The prompts cannot be sampled or judged as asked; found before an engine is started."""


def check_prompts(prompts: pa.Table, verifiers: VerifiersConfig = DEFAULTS) -> None:
    """Raise `RolloutError` for a prompt that no verifier here can judge: names the prompt, the verifier and why."""
    for row in prompts.select(["prompt_id", "source", "verifier", "ground_truth"]).to_pylist():
        where = f"prompt {row['prompt_id']} of source {row['source']!r}"
        truth = json.loads(row["ground_truth"])
        try:
            problem = check_ground_truth(row["verifier"], truth)
        except ValueError as error:
            raise RolloutError(f"{where}: {error}") from None
        if problem:
            raise RolloutError(f"{where}: ground truth {row['ground_truth'][:80]}: {problem}")
        missing = missing_resources(row["verifier"], truth, verifiers)
        if missing:
            raise RolloutError(f"{where}: verifier {row['verifier']!r} lacks {', '.join(missing)}")


def judge(
    prompts: pa.Table,
    parts: Iterable[pa.Table],
    kept: RolloutCache,
    verifiers: VerifiersConfig = DEFAULTS,
    verifier_workers: int = 1,
    *,
    policy: str,
    on_judged: Judged = lambda _: None,
    figures: dict[str, float] | None = None,
) -> Iterator[pa.Table]:
    """`ROLLOUTS` in parts: the responses with the verdicts that are kept, and with those that are missing, made now.

    Args:
        prompts: of all responses.
        parts: tables of `RESPONSES`.
        kept: verdicts that are there already, and takes those that are made now.
        verifiers, verifier_workers, on_judged: as for `sample_and_score`.
        policy: name for the `policy` column.
        figures: is filled with the counters of what was judged now (`VerifierPool.figures`).
    """
    rows = {row["prompt_id"]: row for row in prompts.to_pylist()}
    kept.verdicts.find(rows)
    judges: AbstractContextManager[VerifierPool] | None = None
    pool: VerifierPool | None = None
    try:
        for part in parts:
            ids, texts = part["prompt_id"].to_pylist(), part["response"].to_pylist()
            keys = list(zip(ids, part["sample"].to_pylist(), strict=True))
            scores: list[float | None] = verdicts_of(keys, texts, kept.verdicts)
            errors: list[str | None] = [None] * len(keys)
            missing = [index for index, score in enumerate(scores) if score is None]
            if missing and pool is None:
                judges = open_pool(verifier_workers, verifiers, verifiers_for(prompts))
                pool = judges.__enter__()
            if missing and pool is not None:
                calls = (call_of(rows[ids[index]], texts[index]) for index in missing)
                for index, score in zip(missing, pool.score_many(calls), strict=True):
                    scores[index], errors[index] = (None, score.error) if score.error else (score.value, None)
                    on_judged({"prompt_id": ids[index], "score": scores[index]})
                    if scores[index] is not None:
                        kept.verdicts.append(verdict(*keys[index], texts[index], score.value))
                if kept.verdicts.due:
                    kept.verdicts.flush()
            judged = part.append_column(ROLLOUTS.field("score"), pa.array(scores, pa.float64()))
            judged = judged.append_column(ROLLOUTS.field("error"), pa.array(errors, pa.string()))
            named = pa.array([policy] * part.num_rows, pa.string())
            yield judged.append_column(ROLLOUTS.field("policy"), named).cast(ROLLOUTS)
        if pool is not None and figures is not None:
            figures |= pool.figures()
    finally:
        kept.verdicts.flush()
        if judges is not None:
            judges.__exit__(None, None, None)


def verifiers_for(prompts: pa.Table) -> set[str]:
    """All that the prompts ask for."""
    columns = (prompts.column(name).to_pylist() for name in ("verifier", "ground_truth"))
    return {
        name for verifier, truth in zip(*columns, strict=True) for name in verifiers_of(verifier, json.loads(truth))
    }


def call_of(row: Mapping[str, Any], response: str) -> Call:
    return Call(row["verifier"], response, json.loads(row["ground_truth"]), row["messages"])
