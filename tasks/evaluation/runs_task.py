"""Defines the Flyte task that compares several runs."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
from flytekit import Resources

from images import DATA
from tasks.evaluation.spec import ComparedBenchmarks
from tasks.flyte.stages import (
    Parquet,
    Stopwatch,
    content_digest,
    read_input,
    read_input_batches,
    show,
    shown_stage,
    write_output,
)
from tasks.lineage.provenance import made_from
from tasks.tables.schemas import AFTER, BEFORE, EVALUATION, EVALUATION_PROMPTS, VERDICTS, StageSummary
from tasks.tables.truncation import warn_of_truncation


class ComparedRuns(NamedTuple):
    """The outputs of a comparison of runs: the table of metrics, and the stage's summary."""

    evaluation: Parquet
    summary: StageSummary


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"))
def compare_trained(
    runs: list[str],
    rollouts: list[Parquet],
    prompts: Parquet,
    baseline: str,
    benchmarks: ComparedBenchmarks,
    initial: str,
) -> ComparedRuns:
    """Compare the trained policies of several runs, on the prompts that all of them answered.

    Args:
        runs: names of the runs. Runs of the same name differ in their seed, and their results are averaged.
        rollouts: the outputs `evaluation_rollouts` of the runs, in the same order.
        prompts: the output `evaluation_prompts` of one of the runs.
        baseline: the name in `runs` that the others are compared with.
        benchmarks: the margins, the k of majority@k and the win rate data of benchmarks.
        initial: name of the initial checkpoint of the baseline in the results.
    """
    import pyarrow.compute as pc

    from tasks.charts import decks
    from tasks.evaluation.runs import compare_answers

    watch = Stopwatch("comparison of runs")
    tables = [pa.concat_tables([VERDICTS.empty_table(), *read_input_batches(file, VERDICTS)]) for file in rollouts]
    before = tables[runs.index(baseline)]
    averaged = {initial: [initial]}
    answered = {initial: before.filter(pc.equal(before["policy"], BEFORE))}
    for name, table in zip(runs, tables, strict=True):
        same = averaged.setdefault(name, [])
        same.append(f"{name}, run {len(same) + 1}")
        answered[same[-1]] = table.filter(pc.equal(table["policy"], AFTER))
    asked = read_input(prompts, EVALUATION_PROMPTS)
    evaluation = compare_answers(answered, asked, baseline, benchmarks.benchmarks, averaged)
    warn_of_truncation(evaluation.table)
    lineage = made_from(
        __name__,
        inputs={"rollouts": [content_digest(file) for file in rollouts], "prompts": content_digest(prompts)},
        runs=runs,
        baseline=baseline,
        benchmarks=benchmarks,
        initial=initial,
    )
    show("comparison", decks.comparison(evaluation.table))
    return ComparedRuns(
        write_output("experiment.parquet", evaluation.table, EVALUATION, lineage),
        watch.summary(f"{len(runs)} runs on {asked.num_rows:,} prompts", **evaluation.facts()),
    )
