"""Difficulty as Flyte tasks: the rollouts cost a GPU, the grading costs nothing, and each is cached on its own."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from flytekit import Resources
from flytekit.types.file import FlyteFile

from images import DATA, GENERATION
from tasks.difficulty.spec import RolloutSpec
from tasks.machine import here
from tasks.platform import (
    RESULT,
    Folder,
    Parquet,
    Stopwatch,
    content_digest,
    local,
    sampling,
    scratch,
    show,
    shown_stage,
)
from tasks.provenance import made_from
from tasks.schemas import GRADED, PROMPTS, ROLLOUTS, SET_ASIDE, StageSummary, read_table, write_table
from tasks.verifiers.config import DEFAULTS, VerifiersConfig


class Sampled(NamedTuple):
    rollouts: Parquet
    set_aside: Parquet
    summary: StageSummary


class Graded(NamedTuple):
    graded: Parquet
    kept: Parquet
    set_aside: Parquet
    summary: StageSummary


@shown_stage(
    container_image=GENERATION,
    requests=Resources(cpu="2", mem="8Gi"),
)
def roll_out(
    prompts: Parquet,
    model: Folder,
    spec: Annotated[RolloutSpec, RESULT],
    verifiers: Annotated[VerifiersConfig, RESULT] = DEFAULTS,
) -> Sampled:
    """Scored rollouts of every prompt from the initial checkpoint."""
    from tasks import charts
    from tasks.generation.rollouts import sample_and_score

    watch = Stopwatch("rollouts")
    table = read_table(local(prompts), PROMPTS)
    with sampling("difficulty: rollouts", table, spec.sampling.samples) as judged:
        sampled = sample_and_score(
            table,
            local(model),
            spec.engine,
            spec.sampling,
            policy="initial",
            stage="difficulty",
            verifiers=verifiers.with_initial(local(model)),
            verifier_workers=spec.verifier_workers,
            on_judged=judged,
        )
    lineage = made_from(
        __name__,
        inputs={"prompts": content_digest(prompts), "model": content_digest(model)},
        seed=spec.sampling.seed,
        difficulty=spec,
        verifiers=verifiers,
    )
    speed = sampled.output_tokens / sampled.seconds
    summary = watch.summary(
        f"{sampled.table.num_rows:,} rollouts, {sampled.output_tokens:,} tokens at {speed:,.0f} tokens/s",
        on=here(),
        rollouts=sampled.table.num_rows,
        output_tokens=sampled.output_tokens,
        tokens_per_second=speed,
        engine_start_seconds=sampled.start_seconds,
        unjudged=sampled.table.column("score").null_count,
        verifiers=sampled.verifiers,
    )
    scores = [score for score in sampled.table.column("score").to_pylist() if score is not None]
    show(
        "difficulty: rollouts",
        charts.page(
            {
                "rollouts": f"{sampled.table.num_rows:,}",
                "mean score": f"{sum(scores) / max(len(scores), 1):.1%}",
                "could not be judged": f"{sampled.table.num_rows - len(scores):,}",
                "tokens/s": f"{speed:,.0f}",
            },
            charts.rollout_samples(table, sampled.table),
        ),
    )
    return Sampled(
        FlyteFile(str(write_table(scratch("rollouts.parquet"), sampled.table, ROLLOUTS, lineage))),
        FlyteFile(str(write_table(scratch("set_aside.parquet"), sampled.set_aside, SET_ASIDE, lineage))),
        summary,
    )


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def select_prompts(prompts: Parquet, rollouts: Parquet, set_aside: Parquet, max_pass_rate: float) -> Graded:
    """Pass rates from the rollouts, and the prompts that are not too easy: pass rate strictly below `max_pass_rate`.

    `set_aside` are the prompts that were not sampled.
    """
    from tasks import charts
    from tasks.difficulty.grading import grade, select

    watch = Stopwatch("difficulty")
    graded, unjudged = grade(
        read_table(local(prompts), PROMPTS),
        read_table(local(rollouts), ROLLOUTS),
        read_table(local(set_aside), SET_ASIDE),
    )
    kept = select(graded, max_pass_rate)
    lineage = made_from(
        __name__,
        inputs={"prompts": content_digest(prompts), "rollouts": content_digest(rollouts)},
        max_pass_rate=max_pass_rate,
    )
    show(
        "pass rates",
        charts.page(
            {"graded": f"{graded.num_rows:,}", "kept": f"{kept.num_rows:,}", "kept below": f"{max_pass_rate:.1%}"},
            charts.deck(charts.pass_rates(graded, max_pass_rate)),
        ),
    )
    summary = watch.summary(
        f"{kept.num_rows:,} of {graded.num_rows:,} prompts have a pass rate below {max_pass_rate:.1%}",
        graded=graded.num_rows,
        kept=kept.num_rows,
        too_easy=graded.num_rows - kept.num_rows,
        ungraded=unjudged.num_rows,
        max_pass_rate=max_pass_rate,
    )
    return Graded(
        FlyteFile(str(write_table(scratch("graded.parquet"), graded, GRADED, lineage))),
        FlyteFile(str(write_table(scratch("kept.parquet"), kept, GRADED, lineage))),
        FlyteFile(str(write_table(scratch("set_aside.parquet"), unjudged, SET_ASIDE, lineage))),
        summary,
    )
