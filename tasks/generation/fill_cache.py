"""Fills the rollout cache up to k responses to each prompt: generates missing ones, and judges each as it comes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.generation import chat_template
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.engine import running_engine
from tasks.generation.interface import EngineError, EngineOptionsError, Sampler, sample_seed
from tasks.generation.judging import Judged, call_of, fill_verdicts, verifiers_for
from tasks.generation.policy_server import open_server
from tasks.generation.rollout_cache import RolloutCache, Verdict, known_scores, responses, verdict_row
from tasks.machine import precision
from tasks.machine.resources import has_gpu
from tasks.tables.schemas import messages_key
from tasks.verifiers import VerifierPool, VerifiersConfig, open_pool
from tasks.verifiers.config import DEFAULTS
from tasks.verifiers.function_watch import FunctionWatch, LoggedFunctions, RewardFunctionError

BACKLOG = 4
"""Most responses that are being generated and judged at one time, in multiples of `max_num_seqs`."""

Remaining = Callable[[Sequence[float | None]], int]
"""A function that returns how many samples of a prompt to draw next, given the scores of those so far; 0: no more."""


@dataclass(frozen=True)
class Sampled:
    """The result of `sample`: the number of responses that count of every prompt, and figures of this call.

    Attributes:
        counts: for every prompt the number of its first responses that count.
        reused: number of responses that were in the cache already.
        responses: number of responses generated now.
        output_tokens: number of tokens sampled now.
        start_seconds: wall time until the engine took requests; 0 where no engine was started.
        seconds: wall time of generation.
        verifiers: counters and latencies by verifier (`VerifierPool.figures`).
    """

    counts: list[int]
    reused: int
    responses: int
    output_tokens: int
    start_seconds: float
    seconds: float
    verifiers: dict[str, float]

    @property
    def tokens_per_second(self) -> float:
        """Speed of generation; 0 where nothing was generated."""
        return self.output_tokens / self.seconds if self.seconds else 0.0


def sample(
    prompts: pa.Table,
    model: Path,
    engine: EngineConfig,
    sampling: SamplingConfig,
    *,
    cache: RolloutCache,
    verifiers: VerifiersConfig = DEFAULTS,
    verifier_workers: int = 1,
    remaining: Remaining | None = None,
    on_judged: Judged = lambda _: None,
    logged: LoggedFunctions | None = None,
) -> Sampled:
    """Fill the cache up to `sampling.samples` responses to each prompt; no engine starts where it has them already.

    At most `BACKLOG` times `max_num_seqs` responses are in memory. Each is judged as it comes, and its verdict goes to
    the cache; one that cannot be judged now is left to `Judging`.

    Args:
        prompts, model, engine, sampling, verifiers, verifier_workers, on_judged: as for `sample_and_score`; every
            prompt fits the context.
        cache: responses and verdicts that exist, to which new ones are added.
        remaining: ends the sampling of a prompt before it has all of its samples, cached ones included.
        logged: reward functions that the log of the stage names already, to which new ones are added.

    Raises:
        EngineError, EngineOptionsError: as `Engine` raises them.
        RewardFunctionError: a reward function of the user's fails on every response.
            In each case, responses that were generated until then are cached.
    """
    logged = logged or LoggedFunctions()
    rows = prompts.to_pylist()
    keys = [messages_key(row["messages"]) for row in rows]
    cache.responses.find(keys)
    if remaining is not None:  # it decides by the scores of cached responses, too
        cached = responses(prompts, [sampling.samples] * len(keys), cache)
        fill_verdicts(prompts, cached, cache, verifiers, verifier_workers, on_judged, logged)
    jobs = [_Job.of(row, key, sampling.samples, remaining, cache) for row, key in zip(rows, keys, strict=True)]
    reused = sum(len(job.present) for job in jobs)
    lacking = [job for job in jobs if job.missing]
    generation = _Generation(model, engine, sampling, cache, on_judged, logged)
    if lacking:
        ordered = [lacking[index] for index in interleaved([job.row["verifier"] for job in lacking])]
        token_ids = tokenise([job.row for job in ordered], model, sampling)
        pool = open_pool(verifier_workers, verifiers, verifiers_for(prompts))
        try:
            asyncio.run(generation.run(list(zip(ordered, token_ids, strict=True)), pool))
        finally:
            cache.responses.flush()
            cache.verdicts.flush()
    return Sampled(
        counts=[job.taken for job in jobs],
        reused=reused,
        responses=generation.responses,
        output_tokens=generation.output_tokens,
        start_seconds=generation.start_seconds,
        seconds=generation.seconds,
        verifiers=generation.verifiers,
    )


@dataclass
class _Job:
    """A prompt that is being sampled.

    Attributes:
        row: of `PROMPTS`.
        key: of its responses in the cache.
        samples: largest number of responses.
        remaining: as for `sample`.
        present: the numbers of the responses that exist.
        scores: scores of those of them that were judged.
        taken: number of its first responses that count.
    """

    row: dict[str, Any]
    key: str
    samples: int
    remaining: Remaining | None
    present: set[int]
    scores: dict[int, float | None]
    taken: int = 0

    @classmethod
    def of(cls, row: dict[str, Any], key: str, samples: int, remaining: Remaining | None, cache: RolloutCache) -> _Job:
        """The job of a prompt with its cached responses, which count as far as they are complete."""
        present = {number for number in range(samples) if (key, number) in cache.responses}
        scores: dict[int, float | None] = {}
        if remaining is not None and present:
            scores = known_scores(row["prompt_id"], key, sorted(present), cache)
        job = cls(row, key, samples, remaining, present, scores)
        job.take_present()
        return job

    def next(self) -> range:
        """The numbers of the samples that come next; empty where the prompt has enough."""
        if self.remaining is None or self.taken == self.samples:
            return range(self.taken, self.samples)
        count = self.remaining([self.scores.get(number) for number in range(self.taken)])
        return range(self.taken, self.taken + count)

    @property
    def missing(self) -> list[int]:
        """The numbers of those of the next samples that do not exist yet."""
        return [number for number in self.next() if number not in self.present]

    def take_present(self) -> None:
        """Count existing responses, until one is missing or the prompt has enough."""
        while self.next() and not self.missing:
            self.taken = self.next().stop


class _Generation:
    """One sampler and one pool of verifiers that work off jobs; its attributes are the figures of `Sampled`."""

    def __init__(
        self,
        model: Path,
        config: EngineConfig,
        sampling: SamplingConfig,
        cache: RolloutCache,
        on_judged: Judged,
        logged: LoggedFunctions,
    ) -> None:
        self.responses = self.output_tokens = 0
        self.start_seconds = self.seconds = 0.0
        self.verifiers: dict[str, float] = {}
        self._model = model
        self._config = config
        self._sampling = sampling
        self._cache = cache
        self._on_judged = on_judged
        # `Judging` tries again what a service could not judge.
        self._functions = FunctionWatch(ends_when_away=False, logged=logged)
        self._free_jobs = asyncio.Semaphore(max(1, BACKLOG * config.max_num_seqs * config.replicas // sampling.samples))

    async def run(self, jobs: Sequence[tuple[_Job, list[int]]], judges: AbstractContextManager[VerifierPool]) -> None:
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
                self.start_seconds, self.seconds = ready - began, time.perf_counter() - ready
            self.verifiers = pool.figures()

    async def _finish(self, sampler: Sampler, pool: VerifierPool, job: _Job, ids: list[int]) -> None:
        """Draw responses to one prompt until it has enough."""
        try:
            while missing := job.missing:
                await asyncio.gather(*(self._draw(sampler, pool, job, ids, number) for number in missing))
                job.take_present()
        finally:
            self._free_jobs.release()

    async def _draw(self, sampler: Sampler, pool: VerifierPool, job: _Job, ids: list[int], number: int) -> None:
        """Generate and judge one response, and add both to the cache."""
        seed = None if self._sampling.seed is None else sample_seed(self._sampling.seed, job.key, number)
        completion = await sampler.generate(ids, self._sampling, seed=seed, with_logprobs=False)
        self.responses += 1
        self.output_tokens += completion.num_tokens
        self._cache.responses.append(
            {
                "key": job.key,
                "sample": number,
                "response": completion.text,
                "num_tokens": completion.num_tokens,
                "finish_reason": completion.finish_reason,
            }
        )
        score = await pool.score(*call_of(job.row, completion.text))
        verdict = Verdict.of(score)
        job.present.add(number)
        job.scores[number] = verdict.score
        if verdict.error is None:
            self._cache.verdicts.append(verdict_row(job.row["prompt_id"], number, completion.text, verdict))
        self._on_judged({"prompt_id": job.row["prompt_id"], "score": verdict.score})
        self._functions.judged(job.row["prompt_id"], score)
        for store in (self._cache.responses, self._cache.verdicts):
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


def interleaved(verifiers: Sequence[str]) -> list[int]:
    """Order prompts so that each verifier's come at an even pace, and in their own order; return their indices.

    A slow verifier, such as a model that judges, so works while engines generate for the others. In the order of a
    table, which goes by source, it would idle at first, and the engines at last.

    Args:
        verifiers: the verifier of every prompt.
    """
    sizes = Counter(verifiers)
    positions: defaultdict[str, count[int]] = defaultdict(count)
    progress = [(next(positions[verifier]) + 0.5) / sizes[verifier] for verifier in verifiers]
    return sorted(range(len(verifiers)), key=progress.__getitem__)


def tokenise(rows: Sequence[Mapping[str, Any]], model: Path, sampling: SamplingConfig) -> list[list[int]]:
    """Return the tokens of each prompt, a row of `PROMPTS`, under the model's chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return chat_template.encode(tokenizer, rows, sampling.chat_template_kwargs)
