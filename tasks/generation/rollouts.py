"""k scored responses to each prompt of a table: what the difficulty filter and the evaluation both do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks import precision
from tasks.failures import MistakeError
from tasks.generation import chat_template
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.engine import Completion, Engine, EngineError, has_gpu, running_engine, sample_seed
from tasks.schemas import ROLLOUTS, SET_ASIDE, Stage, set_aside_row, table_from_rows
from tasks.verifiers import (
    VerifierPool,
    VerifiersConfig,
    check_ground_truth,
    missing_resources,
    open_pool,
    verifiers_of,
)
from tasks.verifiers.config import DEFAULTS


class RolloutError(MistakeError):
    """The prompts cannot be sampled or judged as asked; found before an engine is started."""


@dataclass(frozen=True)
class Rollouts:
    """What `sample_and_score` returns.

    Attributes:
        table: `ROLLOUTS`, by prompt in the order of the prompts table and by sample.
        set_aside: `SET_ASIDE`: prompts that do not fit the context.
        start_seconds: wall time until the engine took requests.
        seconds: wall time of generation and judging.
        output_tokens: sampled tokens.
        verifiers: counters and latencies by verifier (`VerifierPool.figures`).
    """

    table: pa.Table
    set_aside: pa.Table
    start_seconds: float
    seconds: float
    output_tokens: int
    verifiers: dict[str, float]


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


def sample_and_score(
    prompts: pa.Table,
    model: Path,
    engine: EngineConfig,
    sampling: SamplingConfig,
    *,
    policy: str,
    stage: Stage,
    verifiers: VerifiersConfig = DEFAULTS,
    verifier_workers: int = 1,
    on_judged: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Rollouts:
    """Sample and judge `sampling.samples` responses to each prompt, all of them in flight together.

    Responses are judged while others are still being generated, by the same verifiers as in training.

    Args:
        prompts: a table of `PROMPTS` (or with more columns).
        model: Hugging Face folder of the policy.
        engine, sampling: how to generate.
        policy: name for the `policy` column.
        stage: that asks, for the rows set aside.
        verifiers: how responses are judged.
        verifier_workers: judging processes.
        on_judged: called with each row of the table when its response has been judged.

    Raises:
        RolloutError: a prompt that cannot be judged.
        ChatTemplateError: see `chat_template.encode`.
        EngineError, EngineOptionsError: see `Engine`.
    """
    check_prompts(prompts, verifiers)
    rows = prompts.to_pylist()
    token_ids = _tokenise(rows, model, sampling)
    room = engine.max_model_len - sampling.max_tokens
    fitting = [(row, ids) for row, ids in zip(rows, token_ids, strict=True) if len(ids) <= room]
    set_aside = [
        set_aside_row(
            stage,
            "length",
            row["source"],
            json.loads(row["metadata"]).get("row", -1),
            f"too long: {len(ids)} tokens; {room} fit beside a response of {sampling.max_tokens}",
            row["messages"][-1]["content"],
            prompt_id=row["prompt_id"],
        )
        for row, ids in zip(rows, token_ids, strict=True)
        if len(ids) > room
    ]
    if not fitting:
        raise RolloutError(f"none of {len(rows)} prompts fits the context of {engine.max_model_len} tokens")

    names = {name for row in rows for name in verifiers_of(row["verifier"], json.loads(row["ground_truth"]))}
    judges = open_pool(verifier_workers, verifiers, names)
    records, figures, start_seconds, seconds = asyncio.run(
        _run(fitting, model, engine, sampling, policy, judges, on_judged)
    )
    return Rollouts(
        table=table_from_rows(records, ROLLOUTS, f"rollouts of {policy}"),
        set_aside=table_from_rows(set_aside, SET_ASIDE, f"set-aside for {policy}"),
        start_seconds=start_seconds,
        seconds=seconds,
        output_tokens=sum(record["num_tokens"] for record in records),
        verifiers=figures,
    )


async def _run(
    prompts: list[tuple[dict[str, Any], list[int]]],
    model: Path,
    config: EngineConfig,
    sampling: SamplingConfig,
    policy: str,
    judges: AbstractContextManager[VerifierPool],
    on_judged: Callable[[dict[str, Any]], None],
) -> tuple[list[dict[str, Any]], dict[str, float], float, float]:
    async def one(
        engine: Engine, pool: VerifierPool, row: dict[str, Any], ids: list[int], sample: int
    ) -> dict[str, Any]:
        seed = None if sampling.seed is None else sample_seed(sampling.seed, row["prompt_id"], sample)
        completion: Completion = await engine.generate(ids, sampling, seed=seed, with_logprobs=False)
        score = await pool.score(row["verifier"], completion.text, json.loads(row["ground_truth"]), row["messages"])
        record = {
            "prompt_id": row["prompt_id"],
            "sample": sample,
            "response": completion.text,
            "num_tokens": len(completion.token_ids),
            "finish_reason": completion.finish_reason,
            "score": None if score.error else score.value,
            "error": score.error,
            "policy": policy,
        }
        on_judged(record)
        return record

    precision.say(config.dtype, precision.resolve(config.dtype, gpu=has_gpu()))
    began = time.perf_counter()
    async with _opened(judges) as opening, running_engine(model, config) as engine:
        pool = await opening
        ready = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                jobs = [
                    group.create_task(one(engine, pool, row, ids, sample))
                    for row, ids in prompts
                    for sample in range(sampling.samples)
                ]
        except* EngineError as failed:
            raise failed.exceptions[0] from None
        done, figures = time.perf_counter(), pool.figures()
    return [job.result() for job in jobs], figures, ready - began, done - ready


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


def _tokenise(rows: list[dict[str, Any]], model: Path, sampling: SamplingConfig) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    return chat_template.encode(tokenizer, (row["messages"] for row in rows), sampling.chat_template_kwargs)
