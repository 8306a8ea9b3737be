"""Defines the Flyte tasks that sample and score the rollouts of the difficulty stage.

    split_prompts ──► roll_out ──► judge_rollouts ──► collect_rollouts ──► `tasks.difficulty.task`
                      one task per shard, retried, cached and resumed separately

Generating responses needs a GPU and does not depend on verifiers, so scoring again does not generate again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import pyarrow as pa
from flytekit import Resources
from flytekit.types.directory import FlyteDirectory

from images import DATA, GENERATION
from tasks.difficulty.spec import RolloutSpec
from tasks.difficulty.summaries import Totals, describe_sampling, merge_summaries
from tasks.flyte.stages import (
    RESULT,
    Folder,
    Parquet,
    Stopwatch,
    content_digest,
    find_storage_location,
    progress,
    read_all_batches,
    read_footer,
    read_input,
    read_input_batches,
    read_input_schema,
    sampling_progress,
    show,
    shown_stage,
    to_local,
    write_output,
)
from tasks.lineage.provenance import made_from
from tasks.machine.resources import process_resources
from tasks.tables.schemas import PROMPTS, RESPONSES, ROLLOUTS, SET_ASIDE, StageSummary
from tasks.verifiers.config import DEFAULTS, VerifiersConfig

if TYPE_CHECKING:
    from tasks.rollouts.rollout_cache import RolloutCache
    from tasks.rollouts.sampling_loop import Sampled

SUMMARY = "summary"
"""The key of a shard's metadata that contains the summary of its stage, because a mapped task has only one output."""


class Split(NamedTuple):
    shards: list[Parquet]
    set_aside: Parquet


class Collected(NamedTuple):
    rollouts: Parquet
    sampling: StageSummary
    judging: StageSummary


@shown_stage(container_image=GENERATION, requests=Resources(cpu="2", mem="8Gi"), ignored_inputs=("verifiers",))
def split_prompts(
    prompts: Parquet,
    model: Folder,
    spec: Annotated[RolloutSpec, RESULT],
    rows: int,
    room: int,
    within: str,
    available: list[str],
    verifiers: VerifiersConfig = DEFAULTS,
) -> Split:
    """Divide the prompts that are short enough and can be verified into shards, and drop the others.

    Args:
        prompts: the prompts of all sources.
        model: the checkpoint whose tokenizer is used to count tokens.
        spec: the sampling options.
        rows: maximum number of prompts of a shard.
        room: maximum number of tokens of a prompt in difficulty and in training.
        within: the option that sets this limit, for the reason.
        available: the data and packages of checkers that the environment has; another set misses the cache.
        verifiers: the options of the verifiers.

    Raises:
        RolloutError: no prompt is short enough, or no prompt of a source can be verified.
    """
    from tasks import charts
    from tasks.difficulty.sharding import shards
    from tasks.rollouts.judging import split_judgeable
    from tasks.rollouts.sample_and_score import RolloutError, split_by_length

    columns = read_input_schema(prompts, PROMPTS)
    everything = read_input(prompts, columns)
    table, lacking = split_judgeable(everything, verifiers, "difficulty")
    lineage = made_from(
        __name__,
        inputs={"prompts": content_digest(prompts), "model": content_digest(model)},
        room=room,
        rows=rows,
        available=available,
    )
    files, too_long = [], [SET_ASIDE.empty_table()]
    for shard in shards(table.column("source").to_pylist(), rows):
        part = table.slice(shard.start, len(shard))
        fits, set_aside = split_by_length(part, to_local(model), spec.sampling, room, within, "difficulty")
        too_long.append(set_aside)
        if fits.num_rows:
            files.append(write_output("prompts.parquet", fits, columns, lineage))
    if not files:
        raise RolloutError(f"none of {table.num_rows} prompts fits: {within}")
    too_long_here = sum(part.num_rows for part in too_long)
    figures = {
        "prompts": f"{everything.num_rows:,}",
        "too long": f"{too_long_here:,}",
        "cannot be scored here": f"{lacking.num_rows:,}",
        "shards": f"{len(files):,}",
    }
    show("shards", charts.page(figures))
    aside = pa.concat_tables([*too_long, lacking])
    return Split(files, write_output("set_aside.parquet", aside, SET_ASIDE, lineage))


@shown_stage(
    container_image=GENERATION,
    requests=Resources(cpu="2", mem="8Gi"),
    ignored_code=("tasks.verifiers",),
    ignored_inputs=("initial", "verifiers"),
)
def roll_out(
    prompts: Parquet,
    model: Folder,
    spec: Annotated[RolloutSpec, RESULT],
    judging: str,
    initial: FlyteDirectory,
    verifiers: VerifiersConfig = DEFAULTS,
) -> Parquet:
    """Sample and score responses to every prompt of a shard from one checkpoint, and return the responses.

    Cached responses are not generated again. The scores are only cached, for `judge_rollouts`.

    Args:
        prompts: a shard, all of whose prompts are short enough.
        model: the checkpoint.
        spec: the sampling options.
        judging: the digest of the scoring options, if the samples depend on it (`spec.stop_at`).
        initial: the checkpoint at the start of training. It is the judge if `verifiers` says so.
        verifiers: the options of the verifiers.
    """
    from tasks import charts
    from tasks.rollouts.rollout_cache import responses

    watch = Stopwatch("rollouts")
    table = read_input(prompts, PROMPTS)
    cache = _open_rollout_cache(spec, model, initial, verifiers)
    sampled = _sample(table, to_local(model), spec, cache, verifiers.resolve_initial(to_local(initial)))
    summary = _make_sampling_summary(watch, sampled, table.num_rows * spec.sampling.samples)
    lineage = made_from(
        __name__,
        inputs={"prompts": content_digest(prompts), "model": content_digest(model)},
        seed=spec.sampling.seed,
        difficulty=spec,
    )
    output = write_output(
        "responses.parquet",
        responses(table, sampled.counts[0], cache),
        RESPONSES,
        lineage,
        last=lambda: {SUMMARY: summary.to_json()},
    )
    figures = {
        "responses": f"{sum(sampled.counts[0]):,}",
        "generated now": f"{sampled.responses:,}",
        "tokens/s": f"{sampled.tokens_per_second:,.0f}",
    }
    show("difficulty: rollouts", charts.page(figures))
    return output


def _sample(
    prompts: pa.Table, model: Path, spec: RolloutSpec, cache: RolloutCache, verifiers: VerifiersConfig
) -> Sampled:
    from tasks.difficulty.stopping import count_remaining
    from tasks.rollouts.judging import check_prompts
    from tasks.rollouts.sampling_loop import Workload, sample

    check_prompts(prompts, verifiers)
    samples = spec.sampling.samples
    most = prompts.num_rows * samples
    with sampling_progress("difficulty: rollouts", prompts, most, spec.engine.loading) as (judged, end):
        sampled = sample(
            [Workload(prompts, spec.sampling, cache)],
            model,
            spec.engine,
            verifiers=verifiers,
            verifier_workers=spec.verifier_workers,
            remaining=partial(count_remaining, samples=samples, bounds=spec.stop_at) if spec.stop_at else None,
            on_judged=judged,
        )
        if early := sum(count < samples for count in sampled.counts[0]):
            end(f"stopped early: {early:,} prompts were decided before their {samples} rollouts")
    return sampled


def _make_sampling_summary(watch: Stopwatch, sampled: Sampled, most: int) -> StageSummary:
    """Return the summary of a shard. `most` is the number of its rollouts without early stopping."""
    rollouts = sum(sampled.counts[0])
    return watch.summary(
        f"{rollouts:,} rollouts",
        on=process_resources(),
        rollouts=rollouts,
        generated=sampled.responses,
        spared=most - rollouts,
        output_tokens=sampled.output_tokens,
        generation_seconds=sampled.seconds,
        engine_start_seconds=sampled.start_seconds,
        verifiers=sampled.verifiers,
    )


@shown_stage(container_image=GENERATION, requests=Resources(cpu="2", mem="8Gi"))
def judge_rollouts(
    prompts: Parquet,
    responses: Parquet,
    model: Folder,
    spec: Annotated[RolloutSpec, RESULT],
    initial: Folder,
    verifiers: Annotated[VerifiersConfig, RESULT] = DEFAULTS,
) -> Parquet:
    """Score the responses of a shard, using cached scores and computing the missing ones.

    Args:
        prompts: the shard.
        responses: responses to these prompts.
        model: the checkpoint that they were sampled from.
        spec: the sampling options.
        initial: the checkpoint at the start of training. It is the judge if `verifiers` says so.
        verifiers: the options of the verifiers.

    Raises:
        RewardFunctionError, RewardServiceError, UnjudgedError: too many responses cannot be scored
            (`spec.max_unjudged`). The scores of the others are cached, so that another attempt only scores the rest.
    """
    from tasks.charts import decks
    from tasks.rollouts.judging import Judging, collect_whole_prompts

    watch = Stopwatch("judging")
    table = read_input(prompts, PROMPTS)
    cache = _open_rollout_cache(spec, model, initial, verifiers)
    judges = partial(Judging, table, cache, verifiers.resolve_initial(to_local(initial)), spec.verifier_workers)
    first: list[pa.Table] = []

    def score_parts() -> Iterator[pa.Table]:
        with judging:
            for part in collect_whole_prompts(read_input_batches(responses, RESPONSES)):
                scored = judging.rollouts(part, policy="initial")
                if not first:
                    first.append(scored)
                yield scored
            judging.check_share(spec.max_unjudged)

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

    def summary() -> dict[str, Any]:
        on = process_resources()
        made = watch.summary(f"{judging.judged:,} judged", on=on, judged=judging.judged, verifiers=judging.figures)
        return {SUMMARY: made.to_json()}

    with progress("difficulty: judging", table.num_rows * spec.sampling.samples) as advance:
        judging = judges(on_judged=lambda _: advance(), on_cached=advance)
        output = write_output("rollouts.parquet", score_parts(), ROLLOUTS, lineage, last=summary)
    show("difficulty: judging", decks.judging(table, first[0] if first else ROLLOUTS.empty_table(), judging.judged))
    return output


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def collect_rollouts(
    responses: list[Parquet],
    rollouts: list[Parquet],
    spec: Annotated[RolloutSpec, RESULT],
    verifiers: Annotated[VerifiersConfig, RESULT] = DEFAULTS,
) -> Collected:
    """Concatenate the rollouts of all shards, and merge the summaries of each of their stages.

    Args:
        responses: the outputs of `roll_out`, for their summaries.
        rollouts: the outputs of `judge_rollouts`.
        spec: the sampling options.
        verifiers: the options of the verifiers.
    """
    from tasks.charts import decks

    digests = [content_digest(shard) for shard in rollouts]
    lineage = made_from(
        __name__, inputs={"rollouts": digests}, seed=spec.sampling.seed, difficulty=spec, verifiers=verifiers
    )
    totals = Totals()
    parts = totals.count(read_all_batches(rollouts, ROLLOUTS))
    output = write_output("rollouts.parquet", parts, ROLLOUTS, lineage)
    sampling, judging = (
        merge_summaries([StageSummary.from_json(read_footer(shard)[SUMMARY]) for shard in shards])
        for shards in (responses, rollouts)
    )
    describe_sampling(sampling, totals, len(rollouts))
    late = judging.facts["judged"]
    scored = f"{late:,} rollouts scored after they were sampled" if late else "all rollouts were scored before"
    judging.headline = scored + (
        f"; {totals.unjudged:,} of {totals.rollouts:,} could not be scored" if totals.unjudged else ""
    )
    speed = sampling.facts["tokens_per_second"]
    judging.facts |= {"unjudged": totals.unjudged, **totals.facts()}
    show("rollouts", decks.rollouts(totals.rollouts, totals.mean_score, totals.unjudged, speed, len(rollouts)))
    return Collected(output, sampling, judging)


def _open_rollout_cache(
    spec: RolloutSpec, model: Folder, initial: FlyteDirectory, verifiers: VerifiersConfig
) -> RolloutCache:
    """Return the cache of these rollouts and their scores."""
    from tasks.rollouts.judged_by import JudgedBy
    from tasks.rollouts.rollout_cache import RolloutCache

    judged_by = JudgedBy(verifiers, content_digest(initial))
    return RolloutCache.open(
        *find_storage_location("rollouts"), content_digest(model), spec.engine, spec.sampling, judged_by
    )
