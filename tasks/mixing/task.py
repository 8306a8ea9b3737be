"""Mixing as Flyte tasks: whether a mixture could be made, and the mixture."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from flytekit import Resources
from flytekit.types.file import FlyteFile

from images import DATA
from tasks.flyte.stages import Parquet, Stopwatch, content_digest, local, scratch, show, shown_stage, stage
from tasks.lineage.provenance import made_from
from tasks.mixing.spec import MixtureSpec
from tasks.tables.parquet import columns_of, read_batches, read_table, with_user_columns, write_batches, write_table
from tasks.tables.schemas import GRADED, PROMPTS, SET_ASIDE, StageSummary

NONE: list[Parquet] = []


class Mixture(NamedTuple):
    mixture: Parquet
    heldout: Parquet
    set_aside: Parquet
    summary: StageSummary


@stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def check_mixture(prompts: Parquet, spec: MixtureSpec) -> StageSummary:
    """Know that the sources could fill the mixture `spec`, before rollouts of their prompts are paid for."""
    from tasks.mixing.mix import check

    watch = Stopwatch("mixing: check")
    table = read_table(local(prompts), PROMPTS)
    check(table, spec)
    return watch.summary(f"{table.num_rows:,} prompts could fill the mixture")


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def mix_prompts(graded: Parquet, spec: MixtureSpec, set_aside: list[Parquet] = NONE) -> Mixture:
    """The training mixture in training order and the held-out prompts, disjoint by prompt and by what is like it.

    `set_aside` are the rows that earlier stages set aside, which with those of this one become one table.
    """
    from tasks import charts
    from tasks.mixing.mix import mix

    watch = Stopwatch("mixing")
    mixed = mix(read_table(local(graded), with_user_columns(GRADED, columns_of(local(graded)))), spec)
    lineage = made_from(__name__, inputs={"kept": content_digest(graded)}, seed=spec.seed, mixture=spec)
    aside = chain(*(read_batches(local(table), SET_ASIDE) for table in set_aside), [mixed.set_aside])
    figures = {"to train on": f"{mixed.train.num_rows:,}", "held out": f"{mixed.heldout.num_rows:,}"}
    show("mixture", charts.page(figures, charts.table(mixed.counts), charts.prompt_samples(mixed.train)))
    return Mixture(
        FlyteFile(str(write_table(scratch("mixture.parquet"), mixed.train, mixed.train.schema, lineage))),
        FlyteFile(str(write_table(scratch("heldout.parquet"), mixed.heldout, mixed.heldout.schema, lineage))),
        FlyteFile(str(write_batches(scratch("set_aside.parquet"), aside, SET_ASIDE, lineage))),
        watch.summary(
            f"{mixed.train.num_rows:,} prompts to train on, {mixed.heldout.num_rows:,} held out", counts=mixed.counts
        ),
    )
