"""Scores responses, each of them once, with the same verifiers as in training."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.failures import InfrastructureError, MistakeError
from tasks.rollouts.episodes import Content, contents_of, environment_path
from tasks.rollouts.rollout_cache import RolloutCache, Verdict, compute_verdict_number, find_verdicts, make_verdict_row
from tasks.rollouts.row_store import Key
from tasks.tables.parquet import build_table
from tasks.tables.schemas import ROLLOUTS, SET_ASIDE, Kind, Stage, set_aside_prompt
from tasks.verifiers import (
    Score,
    VerifierPool,
    VerifiersConfig,
    check_ground_truth,
    collect_verifiers,
    missing_resources,
    open_pool,
)
from tasks.verifiers.calls import Call
from tasks.verifiers.config import DEFAULTS
from tasks.verifiers.function_watch import FunctionWatch, LoggedFunctions, RewardFunctionError
from tasks.verifiers.grouped import has_group_reward

Judged = Callable[[Mapping[str, str | float | None]], None]
"""A callback for every newly scored response. It gets `prompt_id` and `score`, which is None if scoring failed."""


class RolloutError(MistakeError):
    """The prompts cannot be sampled or scored as configured. Raised before an engine is started."""


class UnjudgedError(InfrastructureError):
    """More responses of a stage could not be scored than it allows. Verdicts on the other responses stay cached."""


def check_prompts(prompts: pa.Table, verifiers: VerifiersConfig = DEFAULTS) -> None:
    """Check that responses to every prompt can be scored on this machine, before anything expensive starts.

    Raises:
        RolloutError: a prompt's responses cannot be scored. The message names the first such prompt, its verifier and
            the reason.
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


def split_judgeable(prompts: pa.Table, verifiers: VerifiersConfig, stage: Stage) -> tuple[pa.Table, pa.Table]:
    """Split prompts by whether this machine has the requirements of their verifiers: NLTK data, a package, a sandbox.

    Args:
        prompts: a table of `PROMPTS`.
        verifiers: the options of the verifiers.
        stage: the stage that calls, for the rows of `SET_ASIDE`.

    Returns:
        The prompts whose responses can be scored, and a table of `SET_ASIDE` with the others and what is missing.

    Raises:
        RolloutError: a source has no prompts whose responses can be scored.
    """
    rows = prompts.select(["source", "verifier", "ground_truth"]).to_pylist()
    lacking = [missing_resources(row["verifier"], json.loads(row["ground_truth"]), verifiers) for row in rows]
    for source in dict.fromkeys(row["source"] for row in rows):
        of_source = [missing for row, missing in zip(rows, lacking, strict=True) if row["source"] == source]
        if all(of_source):
            raise RolloutError(
                f"source {source!r}: none of its {len(of_source)} prompts can be scored here: {', '.join(of_source[0])}"
            )
    reasons = [f"cannot be scored: {', '.join(missing)}" if missing else None for missing in lacking]
    return split_prompts(prompts, reasons, stage, "environment")


def split_prompts(
    prompts: pa.Table, reasons: Sequence[str | None], stage: Stage, kind: Kind
) -> tuple[pa.Table, pa.Table]:
    """Return the prompts without a reason to drop them, and a table of `SET_ASIDE` with the others.

    Args:
        prompts: a table of `PROMPTS` (or with more columns).
        reasons: the reason of each prompt, or None for a prompt that stays.
        stage, kind: the columns `stage` and `kind` of `SET_ASIDE`.
    """
    stays = pa.array([reason is None for reason in reasons], pa.bool_())
    dropped = prompts.filter(pc.invert(stays)).to_pylist()
    given = [reason for reason in reasons if reason is not None]
    set_aside = [set_aside_prompt(stage, kind, row, reason) for row, reason in zip(dropped, given, strict=True)]
    return prompts.filter(stays), build_table(set_aside, SET_ASIDE, f"set aside by {stage}")


class Judging:
    """A context manager that turns responses into scored rollouts. It scores only responses without a cached verdict.

    The verifiers start with the first response that needs them, and stop at the end of the block. If a prompt has a
    reward for the whole group, the cache contains one group of its responses, from one policy.

    Args:
        prompts: a table of `PROMPTS` with the prompts of all responses.
        cache: existing verdicts. New ones are added. A response that could not be scored gets none.
        verifiers, verifier_workers, on_judged: as for `sample_and_score`.
        on_cached: called with the number of responses whose verdicts came from the cache.
        logged: reward functions that are already in the log of the stage. New ones are added.

    Attributes:
        judged: number of responses that were newly scored.
        responses: number of all responses, including responses with a cached verdict.
        unjudged: number of responses that could not be scored.
        figures: counters and latencies by verifier (`VerifierPool.figures`), after a block that ended without error.
            Empty if no response was newly scored.
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
        self._keys = {name: cache.compute_verdict_key(row) for name, row in self._rows.items()}
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
        # One look-up for all prompts, because each one reads the keys of every segment of the cache.
        self._cache.verdicts.find(self._keys.values())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The flush comes first, and also after an error: no verdict is lost if closing the pool raises.
        with self._stack:
            self._cache.verdicts.flush()
            if self._pool is not None and kind is None:
                self.figures = self._pool.figures()

    def rollouts(self, part: pa.Table, policy: str) -> pa.Table:
        """Score a table of `RESPONSES` and return a table of `ROLLOUTS`, with `policy` in the column `policy`.

        `part` must contain all responses to each of its prompts (`collect_whole_prompts`).
        """
        verdicts = self.verdicts(part)
        columns = {name: [getattr(verdict, name) for verdict in verdicts] for name in Verdict._fields}
        for name, values in (columns | {"policy": [policy] * part.num_rows}).items():
            column = ROLLOUTS.field(name)
            part = part.append_column(column, pa.array(values, column.type))
        return part.cast(ROLLOUTS)

    def verdicts(self, part: pa.Table) -> list[Verdict]:
        """Return the verdict on every row of a table of `RESPONSES`, with all responses to each of its prompts.

        Raises:
            RewardFunctionError, RewardServiceError: a user's reward function fails on every response.
        """
        ids, contents = part["prompt_id"].to_pylist(), contents_of(part)
        texts = [content.identity for content in contents]
        groups = self._groups(ids, texts)
        # The scores of a group depend on all of its responses, so they are part of the key.
        together = {name: self._cache.compute_verdict_key(self._rows[name], group) for name, group in groups.items()}
        keys = [
            (together.get(name, self._keys[name]), compute_verdict_number(text, number, groups.get(name)))
            for name, text, number in zip(ids, texts, part["sample"].to_pylist(), strict=True)
        ]
        if groups:
            # `__enter__` could not look these up, because their keys need the responses.
            self._cache.verdicts.find(together.values())
        verdicts = find_verdicts(keys, self._cache.verdicts)
        self._count_successes(ids, verdicts)
        missing = [index for index, verdict in enumerate(verdicts) if verdict is None]
        self.responses += len(keys)
        self._on_cached(len(keys) - len(missing))
        alone = [index for index in missing if ids[index] not in groups]
        if alone:
            # An environment has already ended these episodes, with a reward or with an error: no verifier is called.
            ended = [index for index in alone if contents[index].end is not None]
            scores = [end.score for index in ended if (end := contents[index].end)]
            asked = [index for index in alone if contents[index].end is None]
            calls = (build_call(self._rows[ids[index]], contents[index]) for index in asked)
            judged = self._get_pool().scores(calls) if asked else iter(())
            # `scores` yields while the pool works, so verdicts are cached before the last response is scored.
            for index, score in zip([*ended, *asked], chain(scores, judged), strict=True):
                verdicts[index] = self._record_score(ids[index], keys[index], score)
        # One missing verdict is enough: the reward of a group compares all of its responses.
        lacking = {ids[index]: groups[ids[index]] for index in missing if ids[index] in groups}
        if lacking:
            asyncio.run(self._judge_groups(lacking, ids, keys, verdicts))
        # Not after every part: each flush writes a file.
        if self._cache.verdicts.due:
            self._cache.verdicts.flush()
        return [verdict for verdict in verdicts if verdict is not None]

    def _count_successes(self, ids: list[str], cached: list[Verdict | None]) -> None:
        """Count cached verdicts as successes of their reward functions."""
        # Otherwise a function that fails on the responses without a cached verdict would count as failing on all.
        for prompt_id, verdict in zip(ids, cached, strict=True):
            if verdict is not None:
                path = environment_path(self._rows[prompt_id])
                rewards = [str(part["name"]) for part in verdict.rewards or ()]
                self._functions.count_success([*rewards, path] if path else rewards)

    def _groups(self, ids: list[str], texts: list[str]) -> dict[str, list[str]]:
        """Return, by prompt, all responses to each prompt with a reward for the whole group."""
        together = {name for name in dict.fromkeys(ids) if is_group_prompt(self._rows[name])}
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for name, text in zip(ids, texts, strict=True):
            if name in together:
                groups[name].append(text)
        return dict(groups)

    async def _judge_groups(
        self, groups: Mapping[str, list[str]], ids: list[str], keys: list[Key], verdicts: list[Verdict | None]
    ) -> None:
        """Score the groups that lack verdicts, and fill in the missing ones."""
        pool = self._get_pool()
        # All groups start before the first one is awaited, so that the workers of the pool are never idle.
        calls = {
            name: asyncio.create_task(pool.score_group(*build_group_call(self._rows[name], texts)))
            for name, texts in groups.items()
        }
        indices = defaultdict(list)
        for index, name in enumerate(ids):
            indices[name].append(index)
        for name, call in calls.items():
            for index, score in zip(indices[name], await call, strict=True):
                if verdicts[index] is None:
                    verdicts[index] = self._record_score(name, keys[index], score)

    def _record_score(self, prompt_id: str, key: Key, score: Score) -> Verdict:
        """Report the score of a response, and cache it as a verdict."""
        verdict = Verdict.from_score(score)
        self.judged += 1
        self._on_judged({"prompt_id": prompt_id, "score": verdict.score})
        # An error is not cached, so that another attempt scores the response again.
        if verdict.error is None:
            self._cache.verdicts.append(make_verdict_row(key, verdict))
        else:
            self.unjudged += 1
            self._errors[verdict.error] += 1
            # No function of the user caused the error, or its function says that a retry may succeed.
            self._may_pass = self._may_pass or score.failure is None or score.failure.may_pass
        self._functions.judged(prompt_id, score, environment_path(self._rows[prompt_id]))
        return verdict

    def check_share(self, max_unjudged: float) -> None:
        """Check, after all responses, that not too many of them could not be scored.

        Args:
            max_unjudged: maximum share of responses that could not be scored, in [0, 1].

        Raises:
            RewardFunctionError, RewardServiceError: a user's reward function failed on every response.
            RewardFunctionError: the share is exceeded, and all failures are exceptions of the user's functions that
                another attempt would raise again.
            UnjudgedError: the share is exceeded, and some failures may be temporary. Existing verdicts are cached, and
                another attempt scores the rest.
        """
        # First, because its error names the function that fails, and says whether a service is unavailable.
        self._functions.finish()
        if self.unjudged <= max_unjudged * self.responses:
            return
        error, times = self._errors.most_common(1)[0]
        sentence = (
            f"{self.unjudged:,} of {self.responses:,} responses could not be scored, more than the share of "
            f"{max_unjudged:g} that max_unjudged allows; verdicts on the others are kept; {times:,} times: {error}"
        )
        raise UnjudgedError(sentence) if self._may_pass else RewardFunctionError(sentence)

    def _get_pool(self) -> VerifierPool:
        if self._pool is None:
            self._pool = self._stack.enter_context(self._open_pool())
        return self._pool


def collect_whole_prompts(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Regroup the rows of tables of `RESPONSES` into tables with all responses to each of their prompts.

    In the input, the responses to a prompt must be consecutive.
    """
    rest: pa.Table | None = None
    for part in parts:
        joined = part if rest is None else pa.concat_tables([rest, part])
        ids = joined["prompt_id"]
        # The next table may contain more responses to the last prompt, so these rows wait for it.
        begin = pc.index(ids, ids[-1]).as_py() if joined.num_rows else 0
        rest = joined.slice(begin)
        if begin:
            yield joined.slice(0, begin)
    if rest is not None and rest.num_rows:
        yield rest


def verifiers_for(prompts: pa.Table) -> set[str]:
    """Return the names of all verifiers that score responses to these prompts (a table of `PROMPTS`)."""
    columns = (prompts.column(name).to_pylist() for name in ("verifier", "ground_truth"))
    return {
        name
        for verifier, truth in zip(*columns, strict=True)
        for name in collect_verifiers(verifier, json.loads(truth))
    }


def build_call(row: Mapping[str, Any], content: Content) -> Call:
    """Return the verifier call for a response to a prompt (a row of `PROMPTS`)."""
    messages = [*row["messages"], *content.earlier]
    return Call(row["verifier"], content.text, json.loads(row["ground_truth"]), messages)


def is_group_prompt(row: Mapping[str, Any]) -> bool:
    """Return whether a prompt (a row of `PROMPTS`) has a reward that scores all of its responses together."""
    return has_group_reward(row["verifier"], json.loads(row["ground_truth"]))


def build_group_call(row: Mapping[str, Any], responses: list[str]) -> tuple[str, list[str], Any, Any]:
    """Return the arguments of `VerifierPool.score_group` for all responses to a prompt (a row of `PROMPTS`)."""
    return row["verifier"], responses, json.loads(row["ground_truth"]), row["messages"]
