"""The rollouts of difficulty as Flyte tasks.

    split_prompts ──► roll_out ──► judge_rollouts ──► collect_rollouts ──► `tasks.difficulty.task`
                      a shard each: retried, cached and resumed by itself

The responses cost a GPU and depend on no verifier; judging them anew generates nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
from flytekit import Resources
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from images import DATA, GENERATION
from tasks.difficulty.spec import RolloutSpec
from tasks.flyte.stages import (
    RESULT,
    RUN_TIME,
    Folder,
    Parquet,
    Stopwatch,
    content_digest,
    footer,
    local,
    sampling,
    scratch,
    show,
    shown_stage,
    storage_location,
)
from tasks.lineage.provenance import made_from
from tasks.machine.resources import process_resources
from tasks.tables.parquet import columns_of, read_batches, read_table, with_user_columns, write_batches, write_table
from tasks.tables.schemas import PROMPTS, RESPONSES, ROLLOUTS, SET_ASIDE, StageSummary
from tasks.verifiers.config import DEFAULTS, VerifiersConfig

SUMMARY = "summary"
"""The entry of a shard's metadata with what its stage has to say: a mapped task has one output."""


class Split(NamedTuple):
    shards: list[Parquet]
    set_aside: Parquet


class Collected(NamedTuple):
    rollouts: Parquet
    sampling: StageSummary
    judging: StageSummary


@shown_stage(container_image=GENERATION, requests=Resources(cpu="2", mem="8Gi"))
def split_prompts(
    prompts: Parquet, model: Folder, spec: Annotated[RolloutSpec, RESULT], rows: int, room: int, within: str
) -> Split:
    """The prompts that fit, in shards, and the others.

    Args:
        prompts: of all sources.
        model: whose tokens count.
        spec: how they are sampled.
        rows: of a shard at most.
        room: tokens that a prompt may have in difficulty and in training.
        within: what sets this bound, for the reason.
    """
    from tasks import charts
    from tasks.difficulty.sharding import shards
    from tasks.generation.sample_and_score import RolloutError, fitting

    columns = with_user_columns(PROMPTS, columns_of(local(prompts)))
    table = read_table(local(prompts), columns)
    lineage = made_from(
        __name__, inputs={"prompts": content_digest(prompts), "model": content_digest(model)}, room=room, rows=rows
    )
    files, aside = [], [SET_ASIDE.empty_table()]
    for shard in shards(table.column("source").to_pylist(), rows):
        part = table.slice(shard.start, shard.end - shard.start)
        fits, too_long = fitting(part, local(model), spec.sampling, room, within, "difficulty")
        aside.append(too_long)
        if fits.num_rows:
            files.append(FlyteFile(str(write_table(scratch("prompts.parquet"), fits, columns, lineage))))
    set_aside = pa.concat_tables(aside)
    if not files:
        raise RolloutError(f"none of {table.num_rows} prompts fits: {within}")
    figures = {"prompts": f"{table.num_rows:,}", "too long": f"{set_aside.num_rows:,}", "shards": f"{len(files):,}"}
    show("shards", charts.page(figures))
    return Split(files, FlyteFile(str(write_table(scratch("set_aside.parquet"), set_aside, SET_ASIDE, lineage))))


@shown_stage(
    container_image=GENERATION,
    requests=Resources(cpu="2", mem="8Gi"),
    ignored_code=("tasks.verifiers",),
)
def roll_out(
    prompts: Parquet,
    model: Folder,
    spec: Annotated[RolloutSpec, RESULT],
    judging: str,
    initial: Annotated[FlyteDirectory, RUN_TIME],
    verifiers: Annotated[VerifiersConfig, RUN_TIME] = DEFAULTS,
) -> Parquet:
    """Responses to every prompt of a shard from one checkpoint; what is kept of them is not generated again.

    They are judged meanwhile, and the verdicts kept for `judge_rollouts`.

    Args:
        prompts: a shard, all of which fit.
        model: the checkpoint.
        spec: how to sample.
        judging: the digest of how is judged, where that has a part in what is sampled (`spec.stop_at`).
        initial: the checkpoint that training begins with, which judges where `verifiers` says so.
        verifiers: how to judge.
    """
    from functools import partial

    from tasks import charts
    from tasks.difficulty.stopping import remaining
    from tasks.generation.fill_cache import sample
    from tasks.generation.judging import check_prompts
    from tasks.generation.rollout_cache import responses

    watch = Stopwatch("rollouts")
    table = read_table(local(prompts), PROMPTS)
    judged_by = verifiers.with_initial(local(initial))
    check_prompts(table, judged_by)
    kept = _kept(spec, model, initial, verifiers)
    samples = spec.sampling.samples
    with sampling("difficulty: rollouts", table, samples) as judged:
        sampled = sample(
            table,
            local(model),
            spec.engine,
            spec.sampling,
            cache=kept,
            verifiers=judged_by,
            verifier_workers=spec.verifier_workers,
            remaining=partial(remaining, samples=samples, bounds=spec.stop_at) if spec.stop_at else None,
            on_judged=judged,
        )
    summary = watch.summary(
        f"{sum(sampled.counts):,} rollouts",
        on=process_resources(),
        rollouts=sum(sampled.counts),
        generated=sampled.responses,
        spared=table.num_rows * samples - sum(sampled.counts),
        output_tokens=sampled.output_tokens,
        generation_seconds=sampled.seconds,
        engine_start_seconds=sampled.start_seconds,
        verifiers=sampled.verifiers,
    )
    lineage = made_from(
        __name__,
        inputs={"prompts": content_digest(prompts), "model": content_digest(model)},
        seed=spec.sampling.seed,
        difficulty=spec,
    )
    parts = responses(table, sampled.counts, kept)
    path = write_batches(
        scratch("responses.parquet"), parts, RESPONSES, lineage, last=lambda: {SUMMARY: summary.as_json()}
    )
    show(
        "difficulty: rollouts",
        charts.page(
            {
                "responses": f"{sum(sampled.counts):,}",
                "generated now": f"{sampled.responses:,}",
                "tokens/s": f"{sampled.tokens_per_second:,.0f}",
            }
        ),
    )
    return FlyteFile(str(path))


@shown_stage(container_image=GENERATION, requests=Resources(cpu="2", mem="8Gi"))
def judge_rollouts(
    prompts: Parquet,
    responses: Parquet,
    model: Folder,
    spec: Annotated[RolloutSpec, RESULT],
    initial: Folder,
    verifiers: Annotated[VerifiersConfig, RESULT] = DEFAULTS,
) -> Parquet:
    """The responses of a shard with their scores: the verdicts that are kept, and those that are missing, made now."""
    from tasks import charts
    from tasks.generation.judging import Judging

    watch = Stopwatch("judging")
    table = read_table(local(prompts), PROMPTS)
    cache = _kept(spec, model, initial, verifiers)
    judging = Judging(table, cache, verifiers.with_initial(local(initial)), spec.verifier_workers)

    def summary() -> dict[str, Any]:
        made = watch.summary(f"{judging.judged:,} judged", judged=judging.judged, verifiers=judging.figures)
        return {SUMMARY: made.as_json()}

    first: list[pa.Table] = []

    def parts() -> Iterator[pa.Table]:
        with judging:
            for part in read_batches(local(responses), RESPONSES):
                scored = judging.rollouts(part, policy="initial")
                if not first:
                    first.append(scored)
                yield scored

    lineage = made_from(
        __name__,
        inputs={
            "prompts": content_digest(prompts),
            "responses": content_digest(responses),
            "model": content_digest(model),
        },
        difficulty=spec,
        verifiers=verifiers,
    )
    path = write_batches(scratch("rollouts.parquet"), parts(), ROLLOUTS, lineage, last=summary)
    samples = charts.rollout_samples(table, pa.concat_tables(first)) if first else ""
    show("difficulty: judging", charts.page({"judged now": f"{judging.judged:,}"}, samples))
    return FlyteFile(str(path))


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def collect_rollouts(
    responses: list[Parquet],
    rollouts: list[Parquet],
    spec: Annotated[RolloutSpec, RESULT],
    verifiers: Annotated[VerifiersConfig, RESULT] = DEFAULTS,
) -> Collected:
    """The rollouts of all shards as one table, and what their stages have to say as one summary each."""
    from tasks import charts

    digests = [content_digest(each) for each in rollouts]
    lineage = made_from(
        __name__, inputs={"rollouts": digests}, seed=spec.sampling.seed, difficulty=spec, verifiers=verifiers
    )
    counts = {"rollouts": 0, "unjudged": 0}
    total = 0.0

    def parts() -> Iterator[pa.Table]:
        nonlocal total
        for shard in rollouts:
            for part in read_batches(local(shard), ROLLOUTS):
                scores = part.column("score")
                counts["rollouts"] += part.num_rows
                counts["unjudged"] += scores.null_count
                total += sum(score for score in scores.to_pylist() if score is not None)
                yield part

    path = write_batches(scratch("rollouts.parquet"), parts(), ROLLOUTS, lineage)
    sampled, judged = (_joined(shards) for shards in (responses, rollouts))
    speed = sampled.facts["output_tokens"] / (sampled.facts["generation_seconds"] or 1)
    sampled.facts |= counts | {"tokens_per_second": speed, "shards": len(rollouts)}
    reused = counts["rollouts"] - sampled.facts["generated"]
    sampled.headline = (
        f"{counts['rollouts']:,} rollouts, {sampled.facts['output_tokens']:,} tokens at {speed:,.0f} tokens/s"
        + (f"; {reused:,} were there" if reused > 0 else "")
        + (f"; {sampled.facts['spared']:,} spared by early stopping" if sampled.facts["spared"] else "")
    )
    judged.headline = f"{judged.facts['judged']:,} rollouts judged after they were sampled"
    done = counts["rollouts"] - counts["unjudged"]
    figures = {
        "rollouts": f"{counts['rollouts']:,}",
        "mean score": f"{total / max(done, 1):.1%}",
        "could not be judged": f"{counts['unjudged']:,}",
        "tokens/s": f"{speed:,.0f}",
        "shards": f"{len(rollouts):,}",
    }
    show("rollouts", charts.page(figures))
    return Collected(FlyteFile(str(path)), sampled, judged)


def _kept(spec: RolloutSpec, model: Folder, initial: Folder, verifiers: VerifiersConfig) -> Any:
    """What was paid for of these rollouts and their verdicts."""
    from tasks.generation.rollout_cache import RolloutCache, judging_digest

    judging = judging_digest(verifiers, content_digest(initial))
    return RolloutCache.at(*storage_location("rollouts"), content_digest(model), spec.engine, spec.sampling, judging)


def _joined(shards: list[Parquet]) -> StageSummary:
    """The summaries of all shards as one: seconds, cores and counts are sums, latencies the longest."""
    each = [StageSummary.of_json(footer(shard)[SUMMARY]) for shard in shards]
    first = min(each, key=lambda summary: datetime.timestamp(summary.started_at))
    names = [name for name, value in first.facts.items() if isinstance(value, int | float)]
    facts: dict[str, Any] = {name: sum(summary.facts[name] for summary in each) for name in names}
    figures: dict[str, float] = {}
    for summary in each:
        for name, value in summary.facts["verifiers"].items():
            figures[name] = max(figures.get(name, 0), value) if "seconds" in name else figures.get(name, 0) + value
    return StageSummary(
        first.stage,
        first.started_at,
        sum(summary.seconds for summary in each),
        "",
        facts | {"verifiers": figures},
        run=each[-1].run,
        image=first.image,
        cores=first.cores,
        gpus=first.gpus,
    )
