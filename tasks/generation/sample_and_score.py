"""k scored responses to each prompt of a table: what the difficulty filter and the evaluation both do.

    sample   prompts ──► engine ──► responses ──► kept by (model, sampling, prompt, sample)
                                        └──► judged meanwhile ──► verdicts, kept by (judging, prompt, sample)
    judge    prompts + responses ──► the verdicts that are kept, and the others now ──► scored rollouts

What is kept is neither generated nor judged again: further prompts or samples cost themselves alone, a mended verifier
costs judgements and no generation, and what is killed goes on where it was. Slow judges work while the engine does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.fill_cache import Sampled, sample, tokenise
from tasks.generation.judging import Judged, RolloutError, check_prompts, judge
from tasks.generation.rollout_cache import RolloutCache, responses
from tasks.tables.parquet import table_from_rows
from tasks.tables.schemas import ROLLOUTS, SET_ASIDE, Stage, set_aside_row
from tasks.verifiers import VerifiersConfig
from tasks.verifiers.config import DEFAULTS


@dataclass(frozen=True)
class Rollouts:
    """What `sample_and_score` returns.

    Attributes:
        table: `ROLLOUTS`, by prompt in the order of the prompts table and by sample.
        set_aside: `SET_ASIDE`: prompts that do not fit the context.
        sampled: what of it was done now.
    """

    table: pa.Table
    set_aside: pa.Table
    sampled: Sampled


def fitting(
    prompts: pa.Table, model: Path, sampling: SamplingConfig, room: int, within: str, stage: Stage
) -> tuple[pa.Table, pa.Table]:
    """The prompts of at most `room` tokens, chat template applied, and `SET_ASIDE` for the others.

    Args:
        prompts: a table of `PROMPTS` (or with more columns).
        model: Hugging Face folder of a policy.
        sampling: says what the chat template takes.
        room: tokens.
        within: what sets the bound, for the reason.
        stage: that asks.
    """
    rows = prompts.to_pylist()
    lengths = [len(ids) for ids in tokenise(rows, model, sampling)]
    set_aside = [
        set_aside_row(
            stage,
            "length",
            row["source"],
            row["row"],
            f"too long: {length} tokens; {within}",
            row["messages"][-1]["content"],
            prompt_id=row["prompt_id"],
        )
        for row, length in zip(rows, lengths, strict=True)
        if length > room
    ]
    fits = pc.less_equal(pa.array(lengths, pa.int64()), room)
    return prompts.filter(fits), table_from_rows(set_aside, SET_ASIDE, f"set aside by {stage}")


def sample_and_score(
    prompts: pa.Table,
    model: Path,
    engine: EngineConfig,
    sampling: SamplingConfig,
    *,
    policy: str,
    stage: Stage,
    kept: RolloutCache,
    verifiers: VerifiersConfig = DEFAULTS,
    verifier_workers: int = 1,
    on_judged: Judged = lambda _: None,
) -> Rollouts:
    """Sample and judge `sampling.samples` responses to each prompt, and hold them all in memory.

    Responses are judged while others are still being generated, by the same verifiers as in training.

    Args:
        prompts: a table of `PROMPTS` (or with more columns).
        model: Hugging Face folder of the policy.
        engine, sampling: how to generate.
        policy: name for the `policy` column.
        stage: that asks, for the rows set aside.
        kept: what is there already, and takes what is made now.
        verifiers: how responses are judged.
        verifier_workers: judging processes.
        on_judged: called for each response that is judged now.

    Raises:
        RolloutError: a prompt that cannot be judged.
        ChatTemplateError: see `chat_template.encode`.
        EngineError, EngineOptionsError: see `Engine`.
    """
    check_prompts(prompts, verifiers)
    room = engine.max_model_len - sampling.max_tokens
    beside = f"{room} fit beside a response of {sampling.max_tokens}"
    fits, set_aside = fitting(prompts, model, sampling, room, beside, stage)
    if not fits.num_rows:
        raise RolloutError(f"none of {prompts.num_rows} prompts fits the context of {engine.max_model_len} tokens")
    sampled = sample(
        fits,
        model,
        engine,
        sampling,
        kept=kept,
        verifiers=verifiers,
        verifier_workers=verifier_workers,
        on_judged=on_judged,
    )
    parts = judge(fits, responses(fits, sampled.counts, kept), kept, verifiers, verifier_workers, policy=policy)
    return Rollouts(pa.concat_tables([ROLLOUTS.empty_table(), *parts]), set_aside, sampled)
