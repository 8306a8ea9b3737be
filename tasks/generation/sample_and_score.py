"""Sampling of k scored responses to each prompt of a table, for the difficulty filter and the evaluation.

    sample    prompts ──► engine ──► responses ──► cached by (model, sampling, prompt, sample)
                                         └──► judged meanwhile ──► verdicts, cached by (judging, prompt, sample)
    Judging   prompts + responses ──► cached verdicts, and new ones for the others ──► scored rollouts

A cached response is not generated again, and a cached verdict not judged again: only new prompts or samples are
generated, a changed verifier costs judgements and no generation, and a killed stage resumes where it was. Slow judges
work while the engine does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.judging import Judged, Judging, RolloutError, by_whole_prompts, check_prompts
from tasks.generation.rollout_cache import responses
from tasks.generation.sampling_loop import Sampled, Workload, sample, tokenise
from tasks.tables.parquet import table_from_rows
from tasks.tables.schemas import ROLLOUTS, SET_ASIDE, Stage, set_aside_row
from tasks.verifiers import VerifiersConfig
from tasks.verifiers.config import DEFAULTS
from tasks.verifiers.function_watch import LoggedFunctions


@dataclass(frozen=True)
class Rollouts:
    """The result of `sample_and_score`: scored rollouts, and the prompts that were not sampled.

    Attributes:
        tables: `ROLLOUTS` of every workload, by prompt in the order of the prompts table and by sample.
        set_aside: `SET_ASIDE`: prompts that do not fit the context.
        sampled: figures of the responses that were generated now.
    """

    tables: list[pa.Table]
    set_aside: pa.Table
    sampled: Sampled

    @property
    def table(self) -> pa.Table:
        """The rollouts of all workloads."""
        return pa.concat_tables([ROLLOUTS.empty_table(), *self.tables])

    def took(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return what the responses of every workload took, as JSON values for the facts of a stage.

        Those that were not generated now came from the cache; their tokens are among `tokens`.

        Args:
            names: of the workloads, in their order.
        """
        return [
            {
                "name": name,
                "responses": table.num_rows,
                "tokens": pc.sum(table.column("num_tokens")).as_py() or 0,
                "generated_responses": generated.responses,
                "generated_tokens": generated.output_tokens,
                "engine_seconds": generated.seconds,
            }
            for name, table, generated in zip(names, self.tables, self.sampled.workloads, strict=True)
        ]


def fitting(
    prompts: pa.Table, model: Path, sampling: SamplingConfig, room: int, within: str, stage: Stage
) -> tuple[pa.Table, pa.Table]:
    """Split prompts by length: return those of at most `room` tokens, and a table of `SET_ASIDE` for the others.

    Args:
        prompts: a table of `PROMPTS` (or with more columns).
        model: Hugging Face folder of a policy, whose chat template is applied.
        sampling: has the variables of the chat template.
        room: largest number of tokens of a prompt.
        within: names the bound in the reason of a row that is set aside.
        stage: the stage that calls, for rows that are set aside.
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
    workloads: Sequence[Workload],
    model: Path,
    engine: EngineConfig,
    *,
    policy: str,
    stage: Stage,
    verifiers: VerifiersConfig = DEFAULTS,
    verifier_workers: int = 1,
    max_unjudged: float = 1.0,
    on_judged: Judged = lambda _: None,
) -> Rollouts:
    """Sample and judge `sampling.samples` responses to each prompt, and return them all as tables in memory.

    One engine serves all workloads. Responses are judged while others are still being generated, by the same verifiers
    as in training.

    Args:
        workloads: the prompts, by how they are sampled.
        model: Hugging Face folder of the policy.
        engine: options of the engine.
        policy: name for the `policy` column.
        stage: the stage that calls, for rows that are set aside.
        verifiers: options of the verifiers.
        verifier_workers: number of processes of each verifier.
        max_unjudged: largest share of a workload's responses that may be unjudged.
        on_judged: called for each response that is judged now.

    Raises:
        RolloutError: a prompt that cannot be judged, or no prompt of a workload that fits the context.
        ChatTemplateError: the chat template does not take the variables of `sampling.chat_template_kwargs`.
        EngineError, EngineOptionsError: as `Engine` raises them.
        RewardFunctionError, RewardServiceError, UnjudgedError: as `Judging.check_share` raises them.
    """
    fits, set_aside = _fitting_workloads(workloads, model, engine, stage, verifiers)
    tried, logged = Counter[str](), LoggedFunctions()

    def first(row: Mapping[str, Any]) -> None:
        tried[row["prompt_id"]] += row["score"] is None
        on_judged(row)

    def again(row: Mapping[str, Any]) -> None:
        if not tried[row["prompt_id"]]:
            on_judged(row)
        else:  # it was counted when it could not be judged
            tried[row["prompt_id"]] -= 1

    sampled = sample(
        fits,
        model,
        engine,
        verifiers=verifiers,
        verifier_workers=verifier_workers,
        on_judged=first,
        logged=logged,
    )
    tables = []
    for workload, counts in zip(fits, sampled.counts, strict=True):
        prompts, cache = workload.prompts, workload.cache
        with Judging(prompts, cache, verifiers, verifier_workers, on_judged=again, logged=logged) as judging:
            answered = by_whole_prompts(responses(prompts, counts, cache))
            parts = [judging.rollouts(part, policy) for part in answered]
            judging.check_share(max_unjudged)
        tables.append(pa.concat_tables([ROLLOUTS.empty_table(), *parts]))
    return Rollouts(tables, set_aside, sampled)


def _fitting_workloads(
    workloads: Sequence[Workload], model: Path, engine: EngineConfig, stage: Stage, verifiers: VerifiersConfig
) -> tuple[list[Workload], pa.Table]:
    """Return the workloads with the prompts that fit, and `SET_ASIDE` for the others, after the checks of all."""
    for workload in workloads:
        check_prompts(workload.prompts, verifiers)
    fits, set_aside = [], [SET_ASIDE.empty_table()]
    for workload in workloads:
        sampling = workload.sampling
        room = engine.max_model_len - sampling.max_tokens
        beside = f"{room} fit beside a response of {sampling.max_tokens}"
        prompts, too_long = fitting(workload.prompts, model, sampling, room, beside, stage)
        if not prompts.num_rows:
            about = f"{workload.name}: " if workload.name else ""
            context = f"the context of {engine.max_model_len} tokens"
            raise RolloutError(f"{about}none of {workload.prompts.num_rows} prompts fits {context}")
        fits.append(replace(workload, prompts=prompts))
        set_aside.append(too_long)
    return fits, pa.concat_tables(set_aside)
