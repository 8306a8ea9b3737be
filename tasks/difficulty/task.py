"""Defines the Flyte tasks that compute pass rates from the rollouts of `tasks.difficulty.rollout_tasks`."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from flytekit import Resources

from images import DATA
from tasks.difficulty.stopping import Bounds
from tasks.flyte.stages import (
    Parquet,
    Stopwatch,
    content_digest,
    read_input,
    read_input_batches,
    read_input_schema,
    show,
    shown_stage,
    write_output,
)
from tasks.lineage.provenance import made_from
from tasks.tables.losses import WARN_IF_LOST, Reasons, count_reasons, losses_of, warn
from tasks.tables.schemas import COMPARED, PROMPTS, ROLLOUTS, SET_ASIDE, StageSummary

_SCORED = pa.schema([ROLLOUTS.field(name) for name in ("prompt_id", "score", "passed", "num_tokens", "error")])
"""The columns of rollouts that grading reads. They exclude the responses, which are most of the bytes."""


class Graded(NamedTuple):
    graded: Parquet
    selected: Parquet
    set_aside: Parquet
    summary: StageSummary


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"), ignored_inputs=("warn_if_lost",))
def select_prompts(
    prompts: Parquet, rollouts: Parquet, set_aside: Parquet, bounds: Bounds, warn_if_lost: float = WARN_IF_LOST
) -> Graded:
    """Compute pass rates and mean scores of prompts, and select the prompts that are neither too easy nor too hard.

    Args:
        prompts: all prompts, including the prompts that were not sampled.
        rollouts: their scored rollouts.
        set_aside: the prompts that were not sampled.
        bounds: the mean scores that are kept.
        warn_if_lost: share of a source's prompts above which it is logged that this stage dropped them.
    """
    from tasks.charts import decks
    from tasks.difficulty.grading import TOO_EASY, count_outside_bounds, grade, select

    watch = Stopwatch("difficulty")
    table = read_input(prompts, read_input_schema(prompts, PROMPTS))
    unsampled = read_input(set_aside, SET_ASIDE)
    graded, unjudged = grade(table, _read_scored(rollouts), unsampled)
    outside = count_outside_bounds(graded, bounds)
    lost = _count_losses(table, [unsampled, unjudged], outside)
    warn(lost, warn_if_lost)
    selected = select(graded, bounds)
    too_easy = sum(reasons[TOO_EASY] for reasons in outside.values())
    lineage = made_from(
        __name__,
        inputs={"prompts": content_digest(prompts), "rollouts": content_digest(rollouts)},
        bounds=bounds,
    )
    show("difficulty", decks.difficulty(graded, selected.num_rows, str(bounds), bounds.max_mean_score))
    return Graded(
        write_output("graded.parquet", graded, graded.schema, lineage),
        write_output("selected.parquet", selected, selected.schema, lineage),
        write_output("set_aside.parquet", unjudged, SET_ASIDE, lineage),
        watch.summary(
            f"{selected.num_rows:,} of {graded.num_rows:,} prompts have a mean score {bounds}",
            graded=graded.num_rows,
            kept=selected.num_rows,
            too_easy=too_easy,
            too_hard=graded.num_rows - selected.num_rows - too_easy,
            ungraded=unjudged.num_rows,
            max_mean_score=bounds.max_mean_score,
            losses=lost,
        ),
    )


class Unfiltered(NamedTuple):
    graded: Parquet
    selected: Parquet
    set_aside: Parquet
    rollouts: Parquet
    sampling: StageSummary
    judging: StageSummary
    summary: StageSummary


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"), ignored_inputs=("warn_if_lost",))
def take_all(prompts: Parquet, set_aside: Parquet, warn_if_lost: float = WARN_IF_LOST) -> Unfiltered:
    """Select all prompts that are short enough, without rollouts, for already filtered data (`difficulty: null`).

    Args:
        prompts: all prompts.
        set_aside: the prompts that are too long, or cannot be verified.
        warn_if_lost: share of a source's prompts above which it is logged that this stage dropped them.
    """
    from tasks import charts
    from tasks.difficulty.grading import fill_ungraded

    watch = Stopwatch("difficulty")
    every, aside = read_input(prompts, read_input_schema(prompts, PROMPTS)), read_input(set_aside, SET_ASIDE)
    table, lost = fill_ungraded(every, aside), _count_losses(every, [aside], {})
    warn(lost, warn_if_lost)
    lineage = made_from(__name__, inputs={"prompts": content_digest(prompts), "set_aside": content_digest(set_aside)})
    show("difficulty", charts.page({"kept": f"{table.num_rows:,}", "difficulty": "not measured"}))
    return Unfiltered(
        write_output("graded.parquet", table, table.schema, lineage),
        write_output("selected.parquet", table, table.schema, lineage),
        write_output("set_aside.parquet", SET_ASIDE.empty_table(), SET_ASIDE, lineage),
        write_output("rollouts.parquet", ROLLOUTS.empty_table(), ROLLOUTS, lineage),
        Stopwatch("rollouts").summary("no rollouts: difficulty is null"),
        Stopwatch("judging").summary("nothing scored: difficulty is null"),
        watch.summary(
            f"all {table.num_rows:,} prompts that fit; their difficulty was not measured",
            graded=table.num_rows,
            kept=table.num_rows,
            too_easy=0,
            too_hard=0,
            ungraded=0,
            losses=lost,
        ),
    )


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def compare_variants(prompts: Parquet, rollouts: list[Parquet], variants: list[str]) -> Parquet:
    """Compute the pass rates of several checkpoints or chat template options, on the prompts that all of them answered.

    Args:
        prompts: the prompts of all rollouts.
        rollouts: one table for each variant.
        variants: the names of the variants. If empty, the table is empty.
    """
    from tasks.charts import decks
    from tasks.difficulty.grading import compare, grade

    table = read_input(prompts, PROMPTS)
    graded = [grade(table, _read_scored(file), SET_ASIDE.empty_table())[0] for file in rollouts]
    compared = compare(graded, variants) if variants else COMPARED.empty_table()
    digests = [content_digest(file) for file in rollouts]
    lineage = made_from(__name__, inputs={"prompts": content_digest(prompts), "rollouts": digests}, variants=variants)
    show("checkpoints compared", decks.variants(compared, len(variants)))
    return write_output("compared.parquet", compared, COMPARED, lineage)


def _count_losses(prompts: pa.Table, set_aside: list[pa.Table], outside: Reasons) -> list[dict[str, Any]]:
    """Return the losses of this stage (`tasks.tables.losses`). `outside` counts the prompts outside of the bounds."""
    reasons = count_reasons(set_aside)["difficulty"]
    for source, counts in outside.items():
        reasons[source] += counts
    return losses_of("difficulty", prompts, reasons)


def _read_scored(rollouts: Parquet) -> pa.Table:
    return pa.concat_tables([_SCORED.empty_table(), *read_input_batches(rollouts, _SCORED)])
