"""Has a store hold k responses to each prompt: generates those that it lacks, and judges each as it comes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.generation import chat_template
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.engine import Engine, running_engine
from tasks.generation.interface import EngineError, sample_seed
from tasks.generation.judging import Judged, call_of, judge, verifiers_for
from tasks.generation.rollout_cache import RolloutCache, known_scores, responses, verdict
from tasks.machine import precision
from tasks.machine.resources import has_gpu
from tasks.tables.schemas import messages_key
from tasks.verifiers import VerifierPool, VerifiersConfig, open_pool
from tasks.verifiers.config import DEFAULTS

BACKLOG = 4
"""Prompts are taken up while fewer than this many times `max_num_seqs` responses are on their way."""

Remaining = Callable[[Sequence[float | None]], int]
"""How many samples of a prompt to draw next, by the scores of those that there are; 0: no more."""


@dataclass
class Sampled:
    """What `sample` did.

    Attributes:
        responses: responses generated now.
        reused: responses that were kept already.
        output_tokens: sampled now.
        start_seconds: wall time until the engine took requests.
        seconds: wall time of generation.
        verifiers: counters and latencies by verifier (`VerifierPool.figures`).
        counts: of each prompt, how many of its first responses count.
    """

    responses: int = 0
    reused: int = 0
    output_tokens: int = 0
    start_seconds: float = 0.0
    seconds: float = 0.0
    verifiers: dict[str, float] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Of generation; 0 where nothing was generated."""
        return self.output_tokens / self.seconds if self.seconds else 0.0


def sample(
    prompts: pa.Table,
    model: Path,
    engine: EngineConfig,
    sampling: SamplingConfig,
    *,
    kept: RolloutCache,
    verifiers: VerifiersConfig = DEFAULTS,
    verifier_workers: int = 1,
    remaining: Remaining | None = None,
    on_judged: Judged = lambda _: None,
) -> Sampled:
    """Have `kept` hold `sampling.samples` responses to each prompt; starts no engine where it does already.

    At most `BACKLOG` times `max_num_seqs` responses are in memory. Each is judged as it comes, and its verdict kept;
    one that cannot be judged is left to `judge`.

    Args:
        prompts, model, engine, sampling, verifiers, verifier_workers, on_judged: as for `sample_and_score`; every
            prompt fits.
        kept: what is there already, and takes what is made now.
        remaining: ends the sampling of a prompt before it has all of its samples, whose number this holds, too.

    Raises:
        EngineError, EngineOptionsError: see `Engine`. What was generated until then is kept.
    """
    samples = sampling.samples
    keys = [messages_key(messages) for messages in prompts.column("messages").to_pylist()]
    kept.responses.find(keys)
    if remaining is not None:
        there = responses(prompts, [samples] * len(keys), kept)
        for _ in judge(prompts, there, kept, verifiers, verifier_workers, policy=""):
            pass  # so that each response that is there counts with its score
    done = Sampled()
    jobs = [_Job(row, key, samples, remaining) for row, key in zip(prompts.to_pylist(), keys, strict=True)]
    for job in jobs:
        job.present = {number for number in range(samples) if (job.key, number) in kept.responses}
        done.reused += len(job.present)
        if remaining is not None and job.present:
            job.scores = known_scores(job.row["prompt_id"], job.key, sorted(job.present), kept)
        job.take_present()
    lacking = [job for job in jobs if job.missing]
    if lacking:
        waiting = [lacking[index] for index in interleaved([job.row["verifier"] for job in lacking])]
        for job, ids in zip(waiting, tokenise([job.row for job in waiting], model, sampling), strict=True):
            job.ids = ids
        judges = open_pool(verifier_workers, verifiers, verifiers_for(prompts))
        try:
            asyncio.run(_generate(waiting, model, engine, sampling, kept, judges, on_judged, done))
        finally:
            kept.responses.flush()
            kept.verdicts.flush()
    done.counts = [job.taken for job in jobs]
    return done


@dataclass
class _Job:
    """A prompt that is being sampled.

    Attributes:
        row: of `PROMPTS`.
        key: of its responses.
        samples: at most.
        remaining: how many to draw next.
        ids: its tokens.
        present: the numbers of the responses that are there.
        scores: of those that were judged.
        taken: the first so many responses count.
    """

    row: dict[str, Any]
    key: str
    samples: int
    remaining: Remaining | None
    ids: list[int] = field(default_factory=list)
    present: set[int] = field(default_factory=set)
    scores: dict[int, float | None] = field(default_factory=dict)
    taken: int = 0

    def next(self) -> range:
        """The numbers of the samples that come next; none where there are enough."""
        if self.remaining is None or self.taken == self.samples:
            return range(self.taken, self.samples)
        count = self.remaining([self.scores.get(number) for number in range(self.taken)])
        return range(self.taken, self.taken + count)

    @property
    def missing(self) -> list[int]:
        """Those of the next ones that are not there."""
        return [number for number in self.next() if number not in self.present]

    def take_present(self) -> None:
        """Count those that are there, until one is missing or there are enough."""
        while self.next() and not self.missing:
            self.taken = self.next().stop


async def _generate(
    jobs: list[_Job],
    model: Path,
    config: EngineConfig,
    sampling: SamplingConfig,
    kept: RolloutCache,
    judges: AbstractContextManager[VerifierPool],
    on_judged: Judged,
    done: Sampled,
) -> None:
    async def draw(engine: Engine, pool: VerifierPool, job: _Job, number: int) -> None:
        seed = None if sampling.seed is None else sample_seed(sampling.seed, job.key, number)
        completion = await engine.generate(job.ids, sampling, seed=seed, with_logprobs=False)
        done.responses += 1
        done.output_tokens += len(completion.token_ids)
        kept.responses.append(
            {
                "key": job.key,
                "sample": number,
                "response": completion.text,
                "num_tokens": len(completion.token_ids),
                "finish_reason": completion.finish_reason,
            }
        )
        score = await pool.score(*call_of(job.row, completion.text))
        job.present.add(number)
        job.scores[number] = None if score.error else score.value
        if not score.error:
            kept.verdicts.append(verdict(job.row["prompt_id"], number, completion.text, score.value))
        on_judged({"prompt_id": job.row["prompt_id"], "score": job.scores[number]})
        for store in (kept.responses, kept.verdicts):
            if store.due:
                await asyncio.to_thread(store.flush)

    async def run(engine: Engine, pool: VerifierPool, job: _Job) -> None:
        try:
            while missing := job.missing:
                await asyncio.gather(*(draw(engine, pool, job, number) for number in missing))
                job.take_present()
        finally:
            places.release()

    precision.report_float32(config.dtype, precision.resolve(config.dtype, gpu=has_gpu()))
    places = asyncio.Semaphore(max(1, BACKLOG * config.max_num_seqs // sampling.samples))
    began = time.perf_counter()
    async with _opened(judges) as opening, running_engine(model, config) as engine:
        pool = await opening
        ready = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    await places.acquire()
                    group.create_task(run(engine, pool, job))
        except* EngineError as failed:
            raise failed.exceptions[0] from None
        finally:
            done.start_seconds, done.seconds = ready - began, time.perf_counter() - ready
        done.verifiers = pool.figures()


@asynccontextmanager
async def _opened(judges: AbstractContextManager[VerifierPool]) -> AsyncIterator[asyncio.Task[VerifierPool]]:
    """The verifiers, starting while the engine does: a judge's server takes as long as that."""
    opening = asyncio.create_task(asyncio.to_thread(judges.__enter__))
    try:
        yield opening
    finally:
        await asyncio.wait([opening])
        if opening.exception() is None:
            await asyncio.to_thread(judges.__exit__, None, None, None)


def interleaved(verifiers: Sequence[str]) -> list[int]:
    """Indices in an order in which each verifier's prompts come at an even pace, and as they were among themselves.

    One that is slow, as a model that judges, works while engines generate for the others. In the order of a table,
    which goes by source, it would be idle at first, and engines at last.
    """
    sizes = Counter(verifiers)
    places: defaultdict[str, count[int]] = defaultdict(count)
    progress = [(next(places[verifier]) + 0.5) / sizes[verifier] for verifier in verifiers]
    return sorted(range(len(verifiers)), key=progress.__getitem__)


def tokenise(rows: Sequence[Mapping[str, Any]], model: Path, sampling: SamplingConfig) -> list[list[int]]:
    """The tokens of each prompt, a row of `PROMPTS`, under the model's chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return chat_template.encode(tokenizer, (row["messages"] for row in rows), sampling.chat_template_kwargs)
