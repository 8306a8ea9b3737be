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
from tasks.tables.schemas import AFTER, EVALUATION, EVALUATION_PROMPTS, VERDICTS, StageSummary
from tasks.tables.truncation import warn_of_truncation


class ComparedRuns(NamedTuple):
    """The outputs of a comparison of runs: the table of metrics, and the stage's summary."""

    evaluation: Parquet
    summary: StageSummary


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"))
def compare_trained(
    runs: list[str], rollouts: list[Parquet], prompts: Parquet, baseline: str, benchmarks: ComparedBenchmarks
) -> ComparedRuns:
    """Compare the trained policies of several runs, on the prompts that all of them answered.

    Args:
        runs: names of the runs.
        rollouts: the outputs `evaluation_rollouts` of the runs, in the same order.
        prompts: the output `evaluation_prompts` of one of the runs.
        baseline: the run in `runs` that the others are compared with.
        benchmarks: the margins, the k of majority@k and the win rate data of benchmarks.
    """
    import pyarrow.compute as pc

    from tasks.charts import decks
    from tasks.evaluation.runs import compare_answers

    watch = Stopwatch("comparison of runs")
    tables = {
        name: pa.concat_tables([VERDICTS.empty_table(), *read_input_batches(file, VERDICTS)])
        for name, file in zip(runs, rollouts, strict=True)
    }
    answered = {name: table.filter(pc.equal(table["policy"], AFTER)) for name, table in tables.items()}
    asked = read_input(prompts, EVALUATION_PROMPTS)
    evaluation = compare_answers(answered, asked, baseline, benchmarks.benchmarks)
    warn_of_truncation(evaluation.table)
    lineage = made_from(
        __name__,
        inputs={"rollouts": [content_digest(file) for file in rollouts], "prompts": content_digest(prompts)},
        runs=runs,
        baseline=baseline,
        benchmarks=benchmarks,
    )
    show("comparison", decks.comparison(evaluation.table))
    return ComparedRuns(
        write_output("experiment.parquet", evaluation.table, EVALUATION, lineage),
        watch.summary(f"{len(runs)} runs on {asked.num_rows:,} prompts", **evaluation.facts()),
    )
