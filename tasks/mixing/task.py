"""Defines the Flyte tasks of mixing, which check that a mixture is possible, and create it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain, islice
from typing import NamedTuple

from flytekit import Resources

from images import DATA
from tasks.flyte.stages import (
    Parquet,
    Stopwatch,
    content_digest,
    read_all_batches,
    read_input_batches,
    read_input_schema,
    show,
    shown_stage,
    stage,
    write_output,
)
from tasks.lineage.provenance import made_from
from tasks.mixing.spec import Limits, MixtureSpec
from tasks.tables.losses import WARN_IF_LOST, count_reasons, losses_of, warn
from tasks.tables.parquet import mapped
from tasks.tables.schemas import GRADED, PROMPTS, READ, SET_ASIDE, StageSummary

NONE: list[Parquet] = []
NOTHING: list[str] = []
NO_LIMITS = Limits()
NAMED = 3
"""Maximum number of sources in a headline."""


class Mixture(NamedTuple):
    mixture: Parquet
    heldout: Parquet
    set_aside: Parquet
    summary: StageSummary


@stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def check_mixture(
    prompts: Parquet, spec: MixtureSpec, limits: Limits = NO_LIMITS, set_aside: list[Parquet] = NONE
) -> StageSummary:
    """Check that the sources can fill the mixture `spec`, before their prompts are sampled, which is expensive.

    Args:
        prompts: the prompts of all sources.
        spec: the mixture.
        limits: the maximum numbers of prompts of some sources that will remain.
        set_aside: the rows that earlier stages dropped, which the error names if they were all.

    Raises:
        SpecError: every prompt was dropped, or the prompts cannot fill the mixture.
    """
    from tasks.mixing.choosing import check_some_left
    from tasks.mixing.limits import apply_limits
    from tasks.mixing.mix import check

    watch = Stopwatch("mixing: check")
    table, _ = apply_limits(mapped(read_input_batches(prompts, PROMPTS), PROMPTS), limits)
    check_some_left(table, "prompts", read_all_batches(set_aside, SET_ASIDE))
    check(table, spec)
    return watch.summary(f"{table.num_rows:,} prompts could fill the mixture")


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"), ignored_inputs=("warn_if_lost",))
def mix_prompts(
    graded: Parquet,
    spec: MixtureSpec,
    set_aside: list[Parquet] = NONE,
    limits: Limits = NO_LIMITS,
    read: list[str] = NOTHING,
    warn_if_lost: float = WARN_IF_LOST,
) -> Mixture:
    """Create the training mixture, in training order, and the held-out prompts, which are not similar to it.

    Args:
        graded: the prompts that the difficulty filter selected.
        spec: the mixture.
        set_aside: the rows that earlier stages dropped. They are written to one table with the rows of this stage.
        limits: the maximum numbers of prompts of some sources to train on or hold out.
        read: the counts of what was read of each source, JSON, for the footer of the table of dropped rows.
        warn_if_lost: share of a source's prompts above which it is logged that they are similar to held-out prompts.
            What the shares of the mixture leave over does not count.

    Raises:
        SpecError: every prompt was dropped, or the prompts cannot fill the mixture.
    """
    from tasks.charts import decks
    from tasks.mixing.choosing import check_some_left
    from tasks.mixing.limits import apply_limits
    from tasks.mixing.mix import left_over, mix

    watch = Stopwatch("mixing")
    columns = read_input_schema(graded, GRADED)
    table, short = apply_limits(mapped(read_input_batches(graded, columns), columns), limits)
    check_some_left(table, "graded prompts", read_all_batches(set_aside, SET_ASIDE))
    mixed = mix(table, spec)
    lost = losses_of("mixing", table, count_reasons([mixed.set_aside])["mixing"])
    warn(lost, warn_if_lost)
    lineage = made_from(
        __name__, inputs={"selected": content_digest(graded)}, seed=spec.seed, mixture=spec, limits=limits
    )
    every = chain(read_all_batches(set_aside, SET_ASIDE), [mixed.set_aside])
    counts = {name: count for text in read for name, count in json.loads(text).items()}
    show("mixture", decks.mixture(mixed.train, mixed.heldout.num_rows, mixed.counts))
    return Mixture(
        write_output("mixture.parquet", mixed.train, mixed.train.schema, lineage),
        write_output("heldout.parquet", mixed.heldout, mixed.heldout.schema, lineage),
        write_output("set_aside.parquet", every, SET_ASIDE, lineage | {READ: counts}),
        watch.summary(
            f"{mixed.train.num_rows:,} prompts to train on, {mixed.heldout.num_rows:,} held out"
            + _describe_left_over(left_over(mixed))
            + "".join(f"; {source} has {has:,} of {limit:,}" for source, (has, limit) in short.items()),
            counts=mixed.counts,
            losses=lost,
        ),
    )


def _describe_left_over(left: Mapping[str, int]) -> str:
    """Return the numbers of the sources with the most prompts left over, as the end of a headline."""
    named = [f"{number:,} of {source}" for source, number in islice(left.items(), NAMED)]
    others = f" and {len(left) - NAMED:,} more sources" if len(left) > NAMED else ""
    return f"; left over: {', '.join(named)}{others}" if named else ""
