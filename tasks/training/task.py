"""Defines training as one long Flyte task on a Ray cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from flytekit import FlyteContextManager, Resources
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.types.file import FlyteFile

from images import TRAINING
from tasks.failures import InfrastructureError
from tasks.flyte.ray_job import HeadNodeConfig, RayJobConfig
from tasks.flyte.stages import (
    DECK_SECONDS,
    RESULT,
    Folder,
    JsonLines,
    Parquet,
    Stopwatch,
    content_digest,
    make_output_folder,
    progress,
    read_input,
    show,
    shown_stage,
    to_local,
)
from tasks.generation.benchmark_sampling import AskedBenchmarks
from tasks.lineage.provenance import made_from
from tasks.machine.resources import read_ray_resources
from tasks.recipe.run import TrainingConfig
from tasks.storage.locations import resolve_address
from tasks.tables.content_digest import seal
from tasks.tables.json_lines import read_json_lines
from tasks.tables.schemas import PROMPTS, StageSummary
from tasks.training.records.identity import run_name
from tasks.verifiers.config import DEFAULTS, VerifiersConfig

CLUSTER = RayJobConfig(HeadNodeConfig(Resources(cpu="4", mem="32Gi")), [], shutdown_after_job_finishes=True)
"""The machine of the task if it is run alone; in the pipeline the recipe sets the machines
(`workflows/training.py`)."""

NO_QUESTIONS: list[Parquet] = []
"""Tables of questions for a run without benchmarks in validation."""
NO_BENCHMARKS = AskedBenchmarks()
"""The benchmarks for a run without benchmarks in validation."""


class Trained(NamedTuple):
    policy: Folder
    ledger: Parquet
    metrics: JsonLines
    tensorboard: Folder
    summary: StageSummary


@shown_stage(
    container_image=TRAINING,
    task_config=CLUSTER,
    requests=Resources(cpu="4", mem="32Gi"),
    retries=3,
)
def train_policy(
    model: Folder,
    mixture: Parquet,
    config: Annotated[TrainingConfig, RESULT],
    verifiers: Annotated[VerifiersConfig, RESULT] = DEFAULTS,
    questions: list[Parquet] = NO_QUESTIONS,
    asked: AskedBenchmarks = NO_BENCHMARKS,
) -> Trained:
    """Train the initial model on the mixture; an interrupted run is resumed from its last checkpoint.

    The run's name is a digest of what it depends on (`run_name`), so that a retry, a recovered execution or a second
    start with the same inputs finds it: in its folder on the same machine, or on blob storage from another machine.
    With more steps the run continues. With fewer steps than it has taken, a separate run is started, from a copy if
    there is one (`shorter_runs`).

    Args:
        model: the initial checkpoint.
        mixture: the prompts to train on.
        config: the options of training.
        verifiers: the options of the verifiers.
        questions: the questions of the benchmarks used in validation, one table per benchmark.
        asked: the names and the sampling of these benchmarks, in the same order.
    """
    from tasks import charts
    from tasks.training.control.questions import Benchmark
    from tasks.training.records.shorter_runs import find_run_location
    from tasks.training.run import RunInputs
    from tasks.training.run_attempt import run_attempt, step_note

    watch = Stopwatch("training")
    inputs: dict[str, Any] = {"model": content_digest(model), "mixture": content_digest(mixture)}
    tables = [read_input(file, PROMPTS) for file in questions]
    benchmarks = [Benchmark(*pair) for pair in zip(asked.benchmarks, tables, strict=True)]
    digests = [benchmark.digest for benchmark in benchmarks]
    name = run_name(inputs["model"], inputs["mixture"], config, verifiers, digests)
    access = FlyteContextManager.current_context().file_access
    location = find_run_location(name, config, access.raw_output_prefix, access.get_filesystem_for_path)
    folder = location.folder
    inputs["questions"] = [content_digest(file) for file in questions]
    lineage = made_from(
        __name__, inputs=inputs, seed=config.seed, training=config, verifiers=verifiers, benchmarks=asked
    )
    initial = to_local(model)
    drawn_at = 0.0

    with progress("training: steps", config.steps) as advance:

        def on_step(metrics: dict[str, float]) -> None:
            nonlocal drawn_at
            advance(note=step_note(metrics, folder), done=int(metrics["step"]) + 1)
            if time.monotonic() - drawn_at >= DECK_SECONDS:
                drawn_at = time.monotonic()
                show(
                    "training",
                    charts.add_styles(charts.draw_training_curves(read_json_lines(folder / "metrics.jsonl"))),
                )

        judged_by = verifiers.resolve_initial(initial)
        run = RunInputs(
            config,
            initial,
            to_local(mixture),
            folder,
            judged_by,
            benchmarks,
            lineage=lineage,
            on_step=on_step,
        )
        try:
            result = run_attempt(location, run, access.get_filesystem_for_path, advance)
        except InfrastructureError as error:
            raise FlyteRecoverableException(f"{error} (run folder {folder})") from error

    rows = read_json_lines(result.metrics)
    show("training", charts.add_styles(charts.draw_training_curves(rows)))
    summary = _make_summary(watch, config, rows, result.resumed_from, folder)
    return Trained(
        make_output_folder(seal(result.policy)),
        FlyteFile(str(result.ledger)),
        FlyteFile(str(result.metrics)),
        make_output_folder(seal(result.tensorboard)),
        summary,
    )


def _make_summary(
    watch: Stopwatch, config: TrainingConfig, rows: list[dict[str, float]], resumed_from: int, folder: Path
) -> StageSummary:
    """Return the summary of the run over all its attempts; this one was resumed from step `resumed_from`."""
    from tasks.training.telemetry.machine_use import compute_judging_cost, compute_machine_use

    seconds = sum(row["step_seconds"] for row in rows)
    trained = sum(row["trained_tokens_per_second"] * row["step_seconds"] for row in rows)
    generated = sum(row["generated_tokens"] for row in rows)
    rate = generated / max(seconds, 1e-9)
    prefix = FlyteContextManager.current_context().file_access.raw_output_prefix
    resumed = f"; resumed after step {resumed_from}" if resumed_from else ""
    return watch.summary(
        f"{config.steps} steps, {trained:,.0f} tokens trained, {rate:,.0f} tokens/s generated{resumed}",
        before=sum(row["step_seconds"] for row in rows if row["step"] < resumed_from),
        on=read_ray_resources(),
        steps=config.steps,
        resumed_from=resumed_from,
        trained_tokens=trained,
        generated_tokens=generated,
        tokens_per_second=rate,
        verifiers={"judge/cost": cost} if (cost := compute_judging_cost(rows)) else {},
        use_of_machines=compute_machine_use(rows),
        run_folder=folder.name,
        rollouts=f"{resolve_address(folder.name, prefix) or folder}/rollouts" if config.keep_rollouts else "",
    )
