"""Scored rollouts from responses: each response is judged once, by the same verifiers as in training."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.failures import InfrastructureError, MistakeError
from tasks.generation.episodes import Content, contents_of, environment_path
from tasks.generation.rollout_cache import RolloutCache, Verdict, verdict_key, verdict_row, verdicts_of
from tasks.generation.row_store import Key
from tasks.tables.parquet import table_from_rows
from tasks.tables.schemas import REWARDS, ROLLOUTS, SET_ASIDE, Stage, set_aside_row
from tasks.verifiers import (
    Score,
    VerifierPool,
    VerifiersConfig,
    check_ground_truth,
    missing_resources,
    open_pool,
    verifiers_of,
)
from tasks.verifiers.calls import Call
from tasks.verifiers.config import DEFAULTS
from tasks.verifiers.function_watch import FunctionWatch, LoggedFunctions, RewardFunctionError
from tasks.verifiers.grouped import judges_groups

Judged = Callable[[Mapping[str, str | float | None]], None]
"""A callback for every response that is judged now, given its `prompt_id` and `score`; None: it could not be judged."""


class RolloutError(MistakeError):
    """The prompts cannot be sampled or judged as configured; raised before an engine is started."""


class UnjudgedError(InfrastructureError):
    """More responses of a stage could not be judged than it allows; those that were are cached, and stay so."""


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

    The verifiers start with the first response that needs them, and end with the block. A prompt with a reward for all
    of its responses together has one group of them in the cache, those of one policy.

    Args:
        prompts: a table of `PROMPTS`, those of all responses.
        cache: verdicts that exist, to which new ones are added; a response that could not be judged gets none.
        verifiers, verifier_workers, on_judged: as for `sample_and_score`.
        on_cached: called with the number of responses whose verdicts came from the cache.
        logged: reward functions that the log of the stage names already, to which new ones are added.

    Attributes:
        judged: number of responses that were judged now.
        responses: number of all responses, those with a cached verdict among them.
        unjudged: number of responses that could not be judged.
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
        on_cached: Callable[[int], object] = lambda _: None,
        logged: LoggedFunctions | None = None,
    ) -> None:
        self.judged = self.responses = self.unjudged = 0
        self.figures: dict[str, float] = {}
        self._rows = {row["prompt_id"]: row for row in prompts.to_pylist()}
        self._cache = cache
        self._open_pool = partial(open_pool, verifier_workers, verifiers, verifiers_for(prompts))
        self._on_judged = on_judged
        self._on_cached = on_cached
        self._functions = FunctionWatch(logged=logged)
        self._may_pass = False
        self._errors: Counter[str] = Counter()
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
        """Return a table of `RESPONSES` as one of `ROLLOUTS`, with `policy` in the column of that name.

        It has all responses to each of its prompts (`by_whole_prompts`).
        """
        verdicts = self.verdicts(part)
        columns = {
            "score": pa.array([verdict.score for verdict in verdicts], pa.float64()),
            "passed": pa.array([verdict.passed for verdict in verdicts], pa.bool_()),
            "rewards": pa.array([verdict.rewards for verdict in verdicts], REWARDS),
            "detail": pa.array([verdict.detail for verdict in verdicts], pa.string()),
            "error": pa.array([verdict.error for verdict in verdicts], pa.string()),
            "policy": pa.array([policy] * part.num_rows, pa.string()),
        }
        for name, column in columns.items():
            part = part.append_column(ROLLOUTS.field(name), column)
        return part.cast(ROLLOUTS)

    def verdicts(self, part: pa.Table) -> list[Verdict]:
        """Return the verdict on every row of a table of `RESPONSES`, which has all responses to each of its prompts.

        Raises:
            RewardFunctionError, RewardServiceError: a reward function of the user's fails on every response.
        """
        ids, contents = part["prompt_id"].to_pylist(), contents_of(part)
        texts = [content.identity for content in contents]
        groups = self._groups(ids, texts)
        keys = [
            (verdict_key(name, groups.get(name)), number)
            for name, number in zip(ids, part["sample"].to_pylist(), strict=True)
        ]
        if groups:
            self._cache.verdicts.find(key for key, _ in keys)
        verdicts = verdicts_of(keys, texts, self._cache.verdicts)
        self._count_successes(ids, verdicts)
        missing = [index for index, verdict in enumerate(verdicts) if verdict is None]
        self.responses += len(keys)
        self._on_cached(len(keys) - len(missing))
        alone = [index for index in missing if ids[index] not in groups]
        if alone:
            ended = [index for index in alone if contents[index].end is not None]
            scores = [end.score for index in ended if (end := contents[index].end)]
            asked = [index for index in alone if contents[index].end is None]
            calls = (call_of(self._rows[ids[index]], contents[index]) for index in asked)
            judged = self._opened_pool().scores(calls) if asked else iter(())
            for index, score in zip([*ended, *asked], chain(scores, judged), strict=True):
                verdicts[index] = self._judged_now(ids[index], keys[index], texts[index], score)
        lacking = {ids[index]: groups[ids[index]] for index in missing if ids[index] in groups}
        if lacking:
            asyncio.run(self._judge_groups(lacking, ids, keys, verdicts))
        if self._cache.verdicts.due:
            self._cache.verdicts.flush()
        return [verdict for verdict in verdicts if verdict is not None]

    def _count_successes(self, ids: list[str], cached: list[Verdict | None]) -> None:
        """Count the successes behind cached verdicts: what fails on a response that is judged again fails at times."""
        for prompt_id, verdict in zip(ids, cached, strict=True):
            if verdict is not None:
                path = environment_path(self._rows[prompt_id])
                rewards = [str(part["name"]) for part in verdict.rewards or ()]
                self._functions.succeeded([*rewards, path] if path else rewards)

    def _groups(self, ids: list[str], texts: list[str]) -> dict[str, list[str]]:
        """Return all responses to each prompt with a reward for the group, by prompt."""
        together = {name for name in dict.fromkeys(ids) if is_group_prompt(self._rows[name])}
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for name, text in zip(ids, texts, strict=True):
            if name in together:
                groups[name].append(text)
        return dict(groups)

    async def _judge_groups(
        self, groups: Mapping[str, list[str]], ids: list[str], keys: list[Key], verdicts: list[Verdict | None]
    ) -> None:
        """Judge the responses of groups, some of which lack a verdict, and fill in those that are missing."""
        pool = self._opened_pool()
        calls = {
            name: asyncio.create_task(pool.score_group(*group_call_of(self._rows[name], texts)))
            for name, texts in groups.items()
        }
        indices = defaultdict(list)
        for index, name in enumerate(ids):
            indices[name].append(index)
        for name, call in calls.items():
            for index, text, score in zip(indices[name], groups[name], await call, strict=True):
                if verdicts[index] is None:
                    verdicts[index] = self._judged_now(name, keys[index], text, score)

    def _judged_now(self, prompt_id: str, key: Key, text: str, score: Score) -> Verdict:
        """Count the score of a response, and cache the verdict that it is."""
        verdict = Verdict.of(score)
        self.judged += 1
        self._on_judged({"prompt_id": prompt_id, "score": verdict.score})
        if verdict.error is None:
            self._cache.verdicts.append(verdict_row(*key, text, verdict))
        else:
            self.unjudged += 1
            self._errors[verdict.error] += 1
            self._may_pass = self._may_pass or score.failure is None or score.failure.may_pass
        self._functions.judged(prompt_id, score, environment_path(self._rows[prompt_id]))
        return verdict

    def check_share(self, max_unjudged: float) -> None:
        """Check, after all responses, that few enough of them could not be judged.

        Args:
            max_unjudged: largest share of them, in [0, 1].

        Raises:
            RewardFunctionError, RewardServiceError: a reward function of the user's failed on every response.
            RewardFunctionError: exceptions of the user's functions, which would come back, are all that is above the
                share.
            UnjudgedError: more could not be judged. Verdicts that exist are cached: another attempt judges the rest.
        """
        self._functions.finish()
        if self.unjudged <= max_unjudged * self.responses:
            return
        error, times = self._errors.most_common(1)[0]
        sentence = (
            f"{self.unjudged:,} of {self.responses:,} responses could not be judged, more than the share of "
            f"{max_unjudged:g} that max_unjudged allows; verdicts on the others are kept; {times:,} times: {error}"
        )
        raise UnjudgedError(sentence) if self._may_pass else RewardFunctionError(sentence)

    def _opened_pool(self) -> VerifierPool:
        if self._pool is None:
            self._pool = self._stack.enter_context(self._open_pool())
        return self._pool


def fill_verdicts(
    prompts: pa.Table,
    parts: Iterable[pa.Table],
    cache: RolloutCache,
    verifiers: VerifiersConfig,
    verifier_workers: int,
    on_judged: Judged,
    logged: LoggedFunctions,
) -> None:
    """Judge the responses of `parts` that have no verdict in the cache, and add their verdicts to it.

    Args:
        prompts, cache, verifiers, verifier_workers, on_judged, logged: as for `Judging`.
        parts: tables of `RESPONSES`.
    """
    with Judging(prompts, cache, verifiers, verifier_workers, on_judged=on_judged, logged=logged) as judging:
        for part in by_whole_prompts(parts):
            judging.verdicts(part)


def by_whole_prompts(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of tables of `RESPONSES` in tables that hold all responses to each of their prompts.

    The responses to a prompt follow one another.
    """
    rest: pa.Table | None = None
    for part in parts:
        joined = part if rest is None else pa.concat_tables([rest, part])
        ids = joined["prompt_id"]
        begin = pc.index(ids, ids[-1]).as_py() if joined.num_rows else 0
        rest = joined.slice(begin)
        if begin:
            yield joined.slice(0, begin)
    if rest is not None and rest.num_rows:
        yield rest


def verifiers_for(prompts: pa.Table) -> set[str]:
    """Return the names of all verifiers that judge responses to these prompts, a table of `PROMPTS`."""
    columns = (prompts.column(name).to_pylist() for name in ("verifier", "ground_truth"))
    return {
        name for verifier, truth in zip(*columns, strict=True) for name in verifiers_of(verifier, json.loads(truth))
    }


def call_of(row: Mapping[str, Any], content: Content) -> Call:
    """Return the verifier's call for a response to a prompt, a row of `PROMPTS`."""
    messages = [*row["messages"], *content.earlier]
    return Call(row["verifier"], content.text, json.loads(row["ground_truth"]), messages)


def is_group_prompt(row: Mapping[str, Any]) -> bool:
    """Return whether a prompt, a row of `PROMPTS`, has a reward that judges all of its responses together."""
    return judges_groups(row["verifier"], json.loads(row["ground_truth"]))


def group_call_of(row: Mapping[str, Any], responses: list[str]) -> tuple[str, list[str], Any, Any]:
    """Return the arguments of `VerifierPool.score_group` for all responses to a prompt, a row of `PROMPTS`."""
    return row["verifier"], responses, json.loads(row["ground_truth"]), row["messages"]
