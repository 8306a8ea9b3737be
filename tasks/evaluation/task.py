"""Defines the Flyte tasks that evaluate policies one by one, and compare them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import pyarrow as pa
from flytekit import Resources

from images import DATA, GENERATION
from tasks.evaluation.spec import ComparedBenchmarks, EvaluationSpec
from tasks.flyte.stages import (
    RESULT,
    Folder,
    Parquet,
    Stopwatch,
    content_digest,
    find_storage_location,
    read_all_batches,
    read_input,
    sampling_progress,
    show,
    shown_stage,
    to_local,
    write_output,
)
from tasks.generation.benchmark_sampling import AskedBenchmark, AskedBenchmarks
from tasks.lineage.provenance import made_from
from tasks.machine.resources import process_resources
from tasks.rollouts.headlines import format_sampling_headline
from tasks.tables.schemas import (
    EVALUATION,
    EVALUATION_PROMPTS,
    EVALUATION_ROLLOUTS,
    HELDOUT,
    PROMPTS,
    SET_ASIDE,
    VERDICTS,
    StageSummary,
)
from tasks.tables.truncation import warn_of_truncation
from tasks.verifiers.config import DEFAULTS, VerifiersConfig

if TYPE_CHECKING:
    from tasks.rollouts.judged_by import JudgedBy
    from tasks.rollouts.sample_and_score import Rollouts
    from tasks.rollouts.sampling_loop import Workload

logger = logging.getLogger(__name__)

NO_QUESTIONS: list[Parquet] = []
"""Tables of questions of an evaluation with only the held-out prompts."""
NO_BENCHMARKS = AskedBenchmarks()
"""The benchmarks of such an evaluation, with their sampling options."""
NONE_COMPARED = ComparedBenchmarks()
"""The benchmarks of such an evaluation, with their comparison options."""


class Evaluated(NamedTuple):
    rollouts: Parquet
    set_aside: Parquet
    summary: StageSummary


class Compared(NamedTuple):
    evaluation: Parquet
    prompts: Parquet
    rollouts: Parquet
    set_aside: Parquet
    summary: StageSummary


@shown_stage(container_image=GENERATION, requests=Resources(cpu="2", mem="8Gi"))
def evaluate_policy(
    policy: Folder,
    prompts: Parquet,
    config: Annotated[EvaluationSpec, RESULT],
    initial: Folder,
    verifiers: Annotated[VerifiersConfig, RESULT] = DEFAULTS,
    questions: list[Parquet] = NO_QUESTIONS,
    asked: AskedBenchmarks = NO_BENCHMARKS,
) -> Evaluated:
    """Sample and score responses of one policy to the held-out prompts and to the questions of benchmarks.

    One engine answers all of them, with the same weights. Responses are cached by benchmark, so that an additional
    benchmark only costs its own responses. The inputs do not contain the policy's name, so that the same weights are
    evaluated once; the column `policy` contains the digest.

    Args:
        policy: the model folder.
        prompts: the held-out prompts.
        config: the options of the evaluation.
        initial: the checkpoint at the start of training. It is the judge of every policy if `verifiers` says so.
        verifiers: the options of the verifiers.
        questions: the questions of the benchmarks, a table each.
        asked: the names and the sampling options of these benchmarks, in the same order.
    """
    from tasks.charts import decks
    from tasks.rollouts.judged_by import JudgedBy
    from tasks.rollouts.response_identity import resolve_dtype

    watch = Stopwatch("evaluation")
    benchmarks = [AskedBenchmark(name=HELDOUT, sampling=config.sampling), *asked.benchmarks]
    tables = [read_input(file, PROMPTS) for file in (prompts, *questions)]
    digest = content_digest(policy)
    judged_by = JudgedBy(verifiers, content_digest(initial))
    workloads = _build_workloads(tables, benchmarks, digest, config, judged_by)
    rollouts = _sample_rollouts(workloads, policy, digest, config, verifiers.resolve_initial(to_local(initial)))
    lineage = made_from(
        __name__,
        inputs={
            "heldout": content_digest(prompts),
            "policy": digest,
            "questions": [content_digest(file) for file in questions],
        },
        seed={one.name: one.sampling.seed for one in benchmarks if one.sampling.seed is not None},
        evaluation=config,
        benchmarks=asked,
        verifiers=verifiers,
    )
    table = _read_answers(benchmarks, tables, rollouts.tables, config, verifiers)
    sampled, unjudged = rollouts.sampled, table.column("score").null_count
    show("evaluation", decks.evaluation(pa.concat_tables(tables), table, sampled.tokens_per_second))
    return Evaluated(
        write_output("rollouts.parquet", table, EVALUATION_ROLLOUTS, lineage),
        write_output("set_aside.parquet", rollouts.set_aside, SET_ASIDE, lineage),
        watch.summary(
            format_sampling_headline(
                table.num_rows,
                "responses",
                generated=sampled.responses,
                tokens=sampled.output_tokens,
                tokens_per_second=sampled.tokens_per_second,
            )
            + (f"; {unjudged:,} could not be scored" if unjudged else ""),
            on=process_resources(),
            output_tokens=sampled.output_tokens,
            tokens_per_second=sampled.tokens_per_second,
            engine_start_seconds=sampled.start_seconds,
            benchmarks=rollouts.describe_workloads([benchmark.name for benchmark in benchmarks]),
            unjudged=unjudged,
            verifiers=sampled.verifiers,
            dtype=resolve_dtype(config.engine),
            too_long=rollouts.set_aside.num_rows,
        ),
    )


def _build_workloads(
    tables: Sequence[pa.Table],
    benchmarks: Sequence[AskedBenchmark],
    policy: str,
    config: EvaluationSpec,
    judged_by: JudgedBy,
) -> list[Workload]:
    from tasks.rollouts.rollout_cache import RolloutCache
    from tasks.rollouts.sampling_loop import Workload

    return [
        Workload(
            table,
            benchmark.sampling,
            RolloutCache.open(*find_storage_location("rollouts"), policy, config.engine, benchmark.sampling, judged_by),
            benchmark.name,
        )
        for table, benchmark in zip(tables, benchmarks, strict=True)
    ]


def _sample_rollouts(
    workloads: Sequence[Workload],
    policy: Folder,
    digest: str,
    config: EvaluationSpec,
    verifiers: VerifiersConfig,
) -> Rollouts:
    from tasks.rollouts.sample_and_score import sample_and_score

    prompts = pa.concat_tables([workload.prompts for workload in workloads])
    responses = sum(workload.prompts.num_rows * workload.sampling.samples for workload in workloads)
    with sampling_progress("evaluation", prompts, responses, config.engine.loading) as (judged, _):
        return sample_and_score(
            workloads,
            to_local(policy),
            config.engine,
            policy=digest,
            stage="evaluation",
            verifiers=verifiers,
            verifier_workers=config.verifier_workers,
            max_unjudged=config.max_unjudged,
            on_judged=judged,
        )


def _read_answers(
    benchmarks: Sequence[AskedBenchmark],
    prompts: Sequence[pa.Table],
    rollouts: Sequence[pa.Table],
    config: EvaluationSpec,
    verifiers: VerifiersConfig,
) -> pa.Table:
    """Return one table of the `ROLLOUTS` of all benchmarks, with their answers."""
    from tasks.evaluation.answers import add_answers
    from tasks.verifiers import open_pool

    return pa.concat_tables(
        [
            add_answers(
                table,
                questions,
                benchmark.name,
                grouped=benchmark.has_majority,
                open_pool=partial(open_pool, config.verifier_workers, verifiers, ["math"]),
            )
            for benchmark, questions, table in zip(benchmarks, prompts, rollouts, strict=True)
        ]
    )


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"))
def compare_policies(
    policies: list[str],
    rollouts: list[Parquet],
    prompts: Parquet,
    baseline: str = "before",
    questions: list[Parquet] = NO_QUESTIONS,
    benchmarks: ComparedBenchmarks = NONE_COMPARED,
    set_aside: list[Parquet] = NO_QUESTIONS,
    further: list[Parquet] = NO_QUESTIONS,
) -> Compared:
    """Compare policies: metrics of each with intervals, and paired differences from a baseline with a test.

    Args:
        policies: names of the policies.
        rollouts: the rollouts of each policy, in the same order.
        prompts: the held-out prompts that all of them answered.
        baseline: the policy in `policies` that the others are compared with.
        questions: the questions of benchmarks that all of them answered, a table each.
        benchmarks: the names, the margins and the k of majority@k of these benchmarks, in the same order.
        set_aside: tables of dropped questions and prompts, which are concatenated.
        further: rollouts of benchmarks that were evaluated separately: the same number of tables for each policy,
            policy by policy.
    """
    from tasks.charts import decks
    from tasks.evaluation.comparison import compare
    from tasks.evaluation.win_rates import load_length_controls

    watch = Stopwatch("comparison")
    apart = len(further) // len(policies)
    files = {
        name: [file, *further[number * apart : (number + 1) * apart]]
        for number, (name, file) in enumerate(zip(policies, rollouts, strict=True))
    }
    answered = {
        name: pa.concat_tables([VERDICTS.empty_table(), *read_all_batches(listed, VERDICTS)])
        for name, listed in files.items()
    }
    tables = [read_input(file, PROMPTS) for file in (prompts, *questions)]
    for benchmark, table in zip(benchmarks.benchmarks, tables[1:], strict=True):
        if sentence := benchmark.describe_shortfall(table.num_rows):
            logger.warning("%s; questions that were dropped are in the table set_aside_evaluation", sentence)
    names = (HELDOUT, *(benchmark.name for benchmark in benchmarks.benchmarks))
    asked = dict(zip(names, tables, strict=True))
    controls = load_length_controls(benchmarks.benchmarks)
    evaluation = compare(answered, asked, baseline, benchmarks.benchmarks, controls=controls)
    warn_of_truncation(evaluation.table)
    inputs: dict[str, str | list[str]] = {
        "rollouts": [content_digest(file) for file in (*rollouts, *further)],
        "heldout": content_digest(prompts),
        "questions": [content_digest(file) for file in questions],
    }
    lineage = made_from(__name__, inputs=inputs, policies=policies, baseline=baseline, benchmarks=benchmarks)
    show("comparison", decks.comparison(evaluation.table))
    prompts_of_all = pa.concat_tables([_add_benchmark(table, name) for name, table in asked.items()])
    return Compared(
        write_output("evaluation.parquet", evaluation.table, EVALUATION, lineage),
        write_output("evaluation_prompts.parquet", prompts_of_all, EVALUATION_PROMPTS, lineage),
        write_output("evaluation_rollouts.parquet", _read_rollouts(files), EVALUATION_ROLLOUTS, lineage),
        write_output("set_aside.parquet", _set_aside(set_aside), SET_ASIDE, lineage),
        watch.summary(
            evaluation.headline(),
            **evaluation.facts(),
            benchmarks=[
                {**benchmark.model_dump(), "asked": table.num_rows}
                for benchmark, table in zip(benchmarks.benchmarks, tables[1:], strict=True)
            ],
        ),
    )


def _set_aside(files: Sequence[Parquet]) -> pa.Table:
    """Return one table of the rows that the evaluation drops, with `stage` set to `evaluation`."""
    table = pa.concat_tables([SET_ASIDE.empty_table(), *(read_input(file, SET_ASIDE) for file in files)])
    return _with(table, SET_ASIDE.field("stage"), "evaluation")


def _add_benchmark(prompts: pa.Table, benchmark: str) -> pa.Table:
    """Return `PROMPTS` with the benchmark's name."""
    names = pa.array([benchmark] * prompts.num_rows, pa.string())
    return prompts.add_column(0, EVALUATION_PROMPTS.field("benchmark"), names)


def _read_rollouts(files: Mapping[str, Sequence[Parquet]]) -> Iterator[pa.Table]:
    """Yield the rollouts of all policies in batches, with the policies' names instead of their digests."""
    for name, listed in files.items():
        for part in read_all_batches(listed, EVALUATION_ROLLOUTS):
            yield _with(part, EVALUATION_ROLLOUTS.field("policy"), name)


def _with(table: pa.Table, field: pa.Field, value: str) -> pa.Table:
    """Return the table with one value in all rows of a column."""
    values = pa.array([value] * table.num_rows, pa.string())
    return table.set_column(table.schema.get_field_index(field.name), field, values)
