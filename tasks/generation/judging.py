"""Scored rollouts from responses: each response is judged once, by the same verifiers as in training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa

from tasks.failures import MistakeError
from tasks.generation.rollout_cache import RolloutCache, verdict, verdicts_of
from tasks.tables.parquet import table_from_rows
from tasks.tables.schemas import ROLLOUTS, SET_ASIDE, Stage, set_aside_row
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

Judged = Callable[[Mapping[str, str | float | None]], None]
"""A callback for every response that is judged now, given its `prompt_id` and `score`; None: it could not be judged."""


class RolloutError(MistakeError):
    """The prompts cannot be sampled or judged as configured; raised before an engine is started."""


def check_prompts(prompts: pa.Table, verifiers: VerifiersConfig = DEFAULTS) -> None:
    """Check that every prompt can be judged on this machine, before anything expensive starts.

    Raises:
        RolloutError: names the first prompt that cannot, its verifier, and the reason.
    """
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


def judgeable(prompts: pa.Table, verifiers: VerifiersConfig, stage: Stage) -> tuple[pa.Table, pa.Table]:
    """Split prompts by whether this machine has what judges them: NLTK data, a package, a sandbox.

    Args:
        prompts: a table of `PROMPTS`.
        verifiers: the options of the verifiers.
        stage: the stage that calls, for rows that are set aside.

    Returns:
        The prompts that can be judged, and a table of `SET_ASIDE` for the others, with what is missing.

    Raises:
        RolloutError: none of a source's prompts can be judged.
    """
    columns = ["prompt_id", "source", "row", "messages", "verifier", "ground_truth"]
    rows = prompts.select(columns).to_pylist()
    lacking = [missing_resources(row["verifier"], json.loads(row["ground_truth"]), verifiers) for row in rows]
    for source in dict.fromkeys(row["source"] for row in rows):
        reasons = [missing for row, missing in zip(rows, lacking, strict=True) if row["source"] == source]
        if all(reasons):
            raise RolloutError(
                f"source {source!r}: none of its {len(reasons)} prompts can be judged here: {', '.join(reasons[0])}"
            )
    set_aside = [
        set_aside_row(
            stage,
            "environment",
            row["source"],
            row["row"],
            f"cannot be judged: {', '.join(missing)}",
            row["messages"][-1]["content"],
            prompt_id=row["prompt_id"],
        )
        for row, missing in zip(rows, lacking, strict=True)
        if missing
    ]
    fit = pa.array([not missing for missing in lacking], pa.bool_())
    return prompts.filter(fit), table_from_rows(set_aside, SET_ASIDE, f"set aside by {stage}")


class Judging:
    """A context manager that turns responses into scored rollouts, judging only those without a verdict in the cache.

    The verifiers start with the first response that needs them, and end with the block.

    Args:
        prompts: a table of `PROMPTS`, those of all responses.
        cache: verdicts that exist, to which new ones are added; a response that could not be judged gets none.
        verifiers, verifier_workers, on_judged: as for `sample_and_score`.

    Attributes:
        judged: number of responses that were judged now.
        figures: counters and latencies by verifier (`VerifierPool.figures`), after a block that ended without error;
            empty where no response was judged.
    """

    def __init__(
        self,
        prompts: pa.Table,
        cache: RolloutCache,
        verifiers: VerifiersConfig = DEFAULTS,
        verifier_workers: int = 1,
        *,
        on_judged: Judged = lambda _: None,
    ) -> None:
        self.judged = 0
        self.figures: dict[str, float] = {}
        self._rows = {row["prompt_id"]: row for row in prompts.to_pylist()}
        self._cache = cache
        self._open_pool = partial(open_pool, verifier_workers, verifiers, verifiers_for(prompts))
        self._on_judged = on_judged
        self._pool: VerifierPool | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Judging:
        self._cache.verdicts.find(self._rows)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            self._cache.verdicts.flush()
            if self._pool is not None and kind is None:
                self.figures = self._pool.figures()

    def rollouts(self, part: pa.Table, policy: str) -> pa.Table:
        """Return a table of `RESPONSES` as one of `ROLLOUTS`, with `policy` in the column of that name."""
        scores, errors = self.scores(part)
        named = pa.array([policy] * part.num_rows, pa.string())
        columns = {"score": pa.array(scores, pa.float64()), "error": pa.array(errors, pa.string()), "policy": named}
        for name, column in columns.items():
            part = part.append_column(ROLLOUTS.field(name), column)
        return part.cast(ROLLOUTS)

    def scores(self, part: pa.Table) -> tuple[list[float | None], list[str | None]]:
        """Return the score and the verifier's error of every row of a table of `RESPONSES`, one of which is None."""
        ids, texts = part["prompt_id"].to_pylist(), part["response"].to_pylist()
        keys = list(zip(ids, part["sample"].to_pylist(), strict=True))
        scores: list[float | None] = verdicts_of(keys, texts, self._cache.verdicts)
        errors: list[str | None] = [None] * len(keys)
        missing = [index for index, score in enumerate(scores) if score is None]
        if not missing:
            return scores, errors
        calls = (call_of(self._rows[ids[index]], texts[index]) for index in missing)
        for index, score in zip(missing, self._opened_pool().score_many(calls), strict=True):
            scores[index], errors[index] = (None, score.error) if score.error else (score.value, None)
            self.judged += 1
            self._on_judged({"prompt_id": ids[index], "score": scores[index]})
            if scores[index] is not None:
                self._cache.verdicts.append(verdict(*keys[index], texts[index], score.value))
        if self._cache.verdicts.due:
            self._cache.verdicts.flush()
        return scores, errors

    def _opened_pool(self) -> VerifierPool:
        if self._pool is None:
            self._pool = self._stack.enter_context(self._open_pool())
        return self._pool


def fill_verdicts(
    prompts: pa.Table, parts: Iterable[pa.Table], cache: RolloutCache, verifiers: VerifiersConfig, verifier_workers: int
) -> None:
    """Judge the responses of `parts` that have no verdict in the cache, and add their verdicts to it.

    Args:
        prompts, cache, verifiers, verifier_workers: as for `Judging`.
        parts: tables of `RESPONSES`.
    """
    with Judging(prompts, cache, verifiers, verifier_workers) as judging:
        for part in parts:
            judging.scores(part)


def verifiers_for(prompts: pa.Table) -> set[str]:
    """Return the names of all verifiers that judge responses to these prompts, a table of `PROMPTS`."""
    columns = (prompts.column(name).to_pylist() for name in ("verifier", "ground_truth"))
    return {
        name for verifier, truth in zip(*columns, strict=True) for name in verifiers_of(verifier, json.loads(truth))
    }


def call_of(row: Mapping[str, Any], response: str) -> Call:
    """Return the verifier's call for a response to a prompt, a row of `PROMPTS`."""
    return Call(row["verifier"], response, json.loads(row["ground_truth"]), row["messages"])
