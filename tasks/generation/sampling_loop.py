"""Fills the rollout cache up to k responses to each prompt: generates missing ones, and judges each as it comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.generation import chat_template
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.engine import running_engine
from tasks.generation.episodes import StageEpisodes, content_of, environment_path, episode_columns, has_environments
from tasks.generation.interface import (
    Completion,
    EngineError,
    EngineOptionsError,
    Response,
    Sampler,
    sample_seed,
)
from tasks.generation.jobs import Job, Remaining, interleaved
from tasks.generation.judging import (
    Judged,
    RolloutError,
    call_of,
    fill_verdicts,
    group_call_of,
    is_group_prompt,
    verifiers_for,
)
from tasks.generation.policy_server import open_server
from tasks.generation.rollout_cache import (
    RolloutCache,
    Verdict,
    responses,
    verdict_key,
    verdict_row,
)
from tasks.generation.time_shares import TimeShares
from tasks.machine import precision
from tasks.machine.resources import has_gpu
from tasks.verifiers import Score, VerifierPool, VerifiersConfig, open_pool
from tasks.verifiers.config import DEFAULTS, EnvironmentsConfig
from tasks.verifiers.function_watch import FunctionWatch, LoggedFunctions, RewardFunctionError

BACKLOG = 4
"""Most responses that are being generated and judged at one time, in multiples of `max_num_seqs`."""


@dataclass(frozen=True)
class Workload:
    """Prompts that are sampled in one way, such as those of a benchmark.

    Attributes:
        prompts: a table of `PROMPTS` (or with more columns).
        sampling: options of the sampling.
        cache: responses and verdicts that exist, to which new ones are added.
        name: name of the workload in messages; it may be empty where there is only one.
    """

    prompts: pa.Table
    sampling: SamplingConfig
    cache: RolloutCache
    name: str = ""


@dataclass(frozen=True)
class Generated:
    """The work of a call of `sample` for one workload.

    Attributes:
        reused: number of responses that were in the cache already.
        responses: number of responses generated now.
        output_tokens: number of tokens sampled now.
        seconds: its share of the engine's wall time (`TimeShares`).
    """

    reused: int
    responses: int
    output_tokens: int
    seconds: float


@dataclass(frozen=True)
class Sampled:
    """The result of `sample`: the number of responses that count of every prompt, and figures of this call.

    Attributes:
        counts: by workload, for every prompt the number of its first responses that count.
        workloads: by workload, what this call did.
        start_seconds: wall time until the engine took requests; 0 where no engine was started.
        seconds: wall time of generation.
        verifiers: counters and latencies by verifier (`VerifierPool.figures`).
    """

    counts: list[list[int]]
    workloads: list[Generated]
    start_seconds: float
    seconds: float
    verifiers: dict[str, float]

    @property
    def reused(self) -> int:
        """Number of responses that were in the cache already."""
        return sum(workload.reused for workload in self.workloads)

    @property
    def responses(self) -> int:
        """Number of responses generated now."""
        return sum(workload.responses for workload in self.workloads)

    @property
    def output_tokens(self) -> int:
        """Number of tokens sampled now."""
        return sum(workload.output_tokens for workload in self.workloads)

    @property
    def tokens_per_second(self) -> float:
        """Speed of generation; 0 where nothing was generated."""
        return self.output_tokens / self.seconds if self.seconds else 0.0


def sample(
    workloads: Sequence[Workload],
    model: Path,
    engine: EngineConfig,
    *,
    verifiers: VerifiersConfig = DEFAULTS,
    verifier_workers: int = 1,
    remaining: Remaining | None = None,
    on_judged: Judged = lambda _: None,
    logged: LoggedFunctions | None = None,
) -> Sampled:
    """Fill caches up to `sampling.samples` responses to each prompt; no engine starts where they have them already.

    One engine serves all workloads. At most `BACKLOG` times `max_num_seqs` responses are in memory. Each is judged as
    it comes, and its verdict goes to the cache; one that cannot be judged now is left to `Judging`. Those to a prompt
    with a reward for all of them together are judged when all are there.

    Args:
        workloads, model, engine, verifiers, verifier_workers, on_judged: as for `sample_and_score`; every prompt fits
            the context.
        remaining: ends the sampling of a prompt before it has all of its samples, cached ones included; not that of a
            prompt with a reward for all of them together, which depends on their number.
        logged: reward functions that the log of the stage names already, to which new ones are added.

    Raises:
        RolloutError: a server samples for prompts with an environment.
        EngineError, EngineOptionsError: as `Engine` raises them.
        RewardFunctionError: a reward function of the user's fails on every response.
            In each case, responses that were generated until then are cached.
    """
    if engine.server is not None and any(has_environments(workload.prompts) for workload in workloads):
        raise RolloutError("prompts with an environment need an engine: engine.server gives no tokens")
    logged = logged or LoggedFunctions()
    if remaining is not None:  # it decides by the scores of cached responses, too
        for workload in workloads:
            _judge_cached(workload, verifiers, verifier_workers, on_judged, logged)
    jobs = [_jobs(number, workload, remaining) for number, workload in enumerate(workloads)]
    reused = [sum(len(job.present) for job in part) for part in jobs]
    lacking = [
        (job, ids)
        for workload, part in zip(workloads, jobs, strict=True)
        for job, ids in _tokenised(workload, part, model)
    ]
    most_samples = max((workload.sampling.samples for workload in workloads), default=1)
    generation = _Generation(model, engine, len(workloads), most_samples, verifiers.environments, on_judged, logged)
    if lacking:
        ordered = [lacking[index] for index in interleaved([job.row["verifier"] for job, _ in lacking])]
        judges = {name for workload in workloads for name in verifiers_for(workload.prompts)}
        pool = open_pool(verifier_workers, verifiers, judges)
        try:
            asyncio.run(generation.run(ordered, pool))
        finally:
            for workload in workloads:
                workload.cache.responses.flush()
                workload.cache.verdicts.flush()
    return Sampled(
        counts=[[job.taken for job in part] for part in jobs],
        workloads=[
            Generated(*figures)
            for figures in zip(
                reused, generation.responses, generation.output_tokens, generation.shares.seconds, strict=True
            )
        ],
        start_seconds=generation.start_seconds,
        seconds=generation.seconds,
        verifiers=generation.verifiers,
    )


def _judge_cached(
    workload: Workload,
    verifiers: VerifiersConfig,
    verifier_workers: int,
    on_judged: Judged,
    logged: LoggedFunctions,
) -> None:
    """Give cached responses the verdicts that they lack."""
    cache = workload.cache
    alone = pa.array([not is_group_prompt(row) for row in workload.prompts.to_pylist()], pa.bool_())
    prompts = workload.prompts.filter(alone)
    cache.responses.find(cache.keys_of(prompts))
    cached = responses(prompts, [workload.sampling.samples] * prompts.num_rows, cache)
    fill_verdicts(prompts, cached, cache, verifiers, verifier_workers, on_judged, logged)


def _jobs(number: int, workload: Workload, remaining: Remaining | None) -> list[Job]:
    """Return the job of each prompt of the workload with this number, with its cached responses."""
    keys = workload.cache.keys_of(workload.prompts)
    workload.cache.responses.find(keys)
    rows = workload.prompts.to_pylist()
    sampling, cache = workload.sampling, workload.cache
    return [Job.of(number, row, key, sampling, cache, remaining) for row, key in zip(rows, keys, strict=True)]


def _tokenised(workload: Workload, jobs: Sequence[Job], model: Path) -> list[tuple[Job, list[int]]]:
    """Return those jobs that lack responses, with the tokens of their prompts."""
    lacking = [job for job in jobs if job.missing]
    if not lacking:
        return []
    return list(zip(lacking, tokenise([job.row for job in lacking], model, workload.sampling), strict=True))


class _Generation:
    """One sampler and one pool of verifiers that work off jobs.

    Its attributes are the figures of `Sampled`, and by workload those of `Generated`.
    """

    def __init__(
        self,
        model: Path,
        config: EngineConfig,
        workloads: int,
        most_samples: int,
        environments: EnvironmentsConfig,
        on_judged: Judged,
        logged: LoggedFunctions,
    ) -> None:
        self.responses, self.output_tokens = [0] * workloads, [0] * workloads
        self.shares = TimeShares(workloads)
        self.start_seconds = self.seconds = 0.0
        self.verifiers: dict[str, float] = {}
        self._model = model
        self._config = config
        self._environments = environments
        self._episodes: StageEpisodes | None = None
        self._on_judged = on_judged
        # `Judging` tries again what a service could not judge.
        self._functions = FunctionWatch(ends_when_away=False, logged=logged)
        self._free_jobs = asyncio.Semaphore(max(1, BACKLOG * config.max_num_seqs * config.replicas // most_samples))

    async def run(self, jobs: Sequence[tuple[Job, list[int]]], judges: AbstractContextManager[VerifierPool]) -> None:
        """Sample all jobs, given with the tokens of their prompts.

        Raises:
            EngineError: the engine fails.
            EngineOptionsError: the engine does not serve the model, or not with its options.
            RewardFunctionError: a reward function of the user's fails on every response.
        """
        config = self._config
        began = time.perf_counter()
        async with _opened(judges) as opening, _sampler(self._model, config) as sampler:
            pool = await opening
            ready = time.perf_counter()
            try:
                async with asyncio.TaskGroup() as group:
                    for job, ids in jobs:
                        await self._free_jobs.acquire()
                        group.create_task(self._finish(sampler, pool, job, ids))
            except* (EngineError, EngineOptionsError, RewardFunctionError) as failed:
                raise failed.exceptions[0] from None
            finally:
                if self._episodes is not None:
                    await self._episodes.aclose()
                self.start_seconds, self.seconds = ready - began, time.perf_counter() - ready
            self.verifiers = pool.figures()

    async def _finish(self, sampler: Sampler, pool: VerifierPool, job: Job, ids: list[int]) -> None:
        """Draw responses to one prompt until it has enough."""
        try:
            while missing := job.missing:
                await asyncio.gather(*(self._draw(sampler, pool, job, ids, number) for number in missing))
                job.take_present()
            if job.texts is not None:
                await self._judge_group(pool, job, job.texts)
        finally:
            self._free_jobs.release()

    async def _draw(self, sampler: Sampler, pool: VerifierPool, job: Job, ids: list[int], number: int) -> None:
        """Generate and judge one response, and add both to the cache."""
        cache = job.cache
        with self.shares.request(job.workload):
            completion = await self._sampled(sampler, pool, job, ids, number)
        self.responses[job.workload] += 1
        self.output_tokens[job.workload] += completion.num_tokens
        content = content_of(completion)
        cache.responses.append(
            {
                "key": job.key,
                "sample": number,
                "response": completion.text,
                "num_tokens": completion.num_tokens,
                "finish_reason": completion.finish_reason,
                **episode_columns(completion),
                "temporary": content.end is not None and content.end.may_pass,
            }
        )
        if job.texts is not None:
            job.texts[number] = completion.text
            job.present.add(number)
        else:
            score = content.end.score if content.end else await pool.score(*call_of(job.row, content))
            job.present.add(number)
            job.scores[number] = self._judged(job, verdict_key(job.row["prompt_id"]), number, content.identity, score)
        await _flush(cache)

    async def _sampled(
        self, sampler: Sampler, pool: VerifierPool, job: Job, ids: list[int], number: int
    ) -> Completion | Response:
        sampling = job.sampling
        seed = None if sampling.seed is None else sample_seed(sampling.seed, job.key, number)
        if job.row["environment"] is None:
            return await sampler.generate(ids, sampling, seed=seed, with_logprobs=False)
        if self._episodes is None:
            self._episodes = StageEpisodes(self._model, self._environments, sampler, pool)
        return await self._episodes.play(job.row, ids, sampling, seed, number)

    async def _judge_group(self, pool: VerifierPool, job: Job, texts: dict[int, str]) -> None:
        """Judge all responses to a prompt together, and add the verdicts to the cache."""
        stored = sorted(job.present - texts.keys())
        table = job.cache.responses.read([(job.key, number) for number in stored])
        by_number = texts | dict(zip(stored, table["response"].to_pylist(), strict=True))
        group = [by_number[number] for number in sorted(by_number)]
        key = verdict_key(job.row["prompt_id"], group)
        scores = await pool.score_group(*group_call_of(job.row, group))
        for number, (text, score) in enumerate(zip(group, scores, strict=True)):
            self._judged(job, key, number, text, score)
        await _flush(job.cache)

    def _judged(self, job: Job, key: str, number: int, text: str, score: Score) -> float | None:
        """Count the score of a response, cache the verdict that it is, and return that one's score."""
        verdict, prompt_id = Verdict.of(score), job.row["prompt_id"]
        if verdict.error is None:
            job.cache.verdicts.append(verdict_row(key, number, text, verdict))
        self._on_judged({"prompt_id": prompt_id, "score": verdict.score})
        self._functions.judged(prompt_id, score, environment_path(job.row))
        return verdict.score


async def _flush(cache: RolloutCache) -> None:
    """Write what is due of a cache."""
    for store in (cache.responses, cache.verdicts):
        if store.due:
            await asyncio.to_thread(store.flush)


def _sampler(model: Path, config: EngineConfig) -> AbstractAsyncContextManager[Sampler]:
    """Return a context manager of the engine of `model`, or of the client of the server in its place."""
    if config.server is not None:
        return open_server(config.server, model, config)
    precision.report_float32(config.dtype, precision.resolve(config.dtype, gpu=has_gpu()))
    return running_engine(model, config)


@asynccontextmanager
async def _opened(judges: AbstractContextManager[VerifierPool]) -> AsyncIterator[asyncio.Task[VerifierPool]]:
    """Start the verifiers in a thread while the engine starts: a judge's server takes as long as that."""
    stack = ExitStack()
    opening = asyncio.create_task(asyncio.to_thread(stack.enter_context, judges))
    try:
        yield opening
    finally:
        await asyncio.wait([opening])
        opening.exception()  # marks it as seen: where the engine failed first, asyncio would log it
        await asyncio.to_thread(stack.close)


def tokenise(rows: Sequence[Mapping[str, Any]], model: Path, sampling: SamplingConfig) -> list[list[int]]:
    """Return the tokens of each prompt, a row of `PROMPTS`, under the model's chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return chat_template.encode(tokenizer, rows, sampling.chat_template_kwargs)
