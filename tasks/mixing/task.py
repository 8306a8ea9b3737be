"""Mixing as Flyte tasks: the sources as one table, and the mixture of what was kept of it."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import Resources
from flytekit.types.file import FlyteFile

from images import DATA
from tasks.mixing.spec import MixtureSpec
from tasks.platform import Parquet, Stopwatch, content_digest, local, scratch, show, shown_stage
from tasks.provenance import made_from
from tasks.schemas import GRADED, MIXTURE, PROMPTS, REJECTED, StageSummary, read_table, write_table


class Merged(NamedTuple):
    prompts: Parquet
    rejected: Parquet
    summary: StageSummary


class Mixture(NamedTuple):
    mixture: Parquet
    heldout: Parquet
    summary: StageSummary


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def merge_sources(prompts: list[Parquet], rejected: list[Parquet], sources: list[str], spec: MixtureSpec) -> Merged:
    """All `sources`, in their order, as one table, once it is known that they could fill the mixture `spec`.

    That is known here and not when they are mixed: before rollouts are paid for.
    """
    import pyarrow as pa

    from tasks import charts
    from tasks.mixing.merge import merge
    from tasks.mixing.mix import check

    watch = Stopwatch("sourcing")
    merged, duplicates = merge([read_table(local(table), PROMPTS) for table in prompts], sources)
    check(merged, spec)
    aside = pa.concat_tables([*(read_table(local(table), REJECTED) for table in rejected), duplicates])
    lineage = made_from(
        __name__, inputs={"prompts": [content_digest(table) for table in prompts]}, sources=sources, mixture=spec
    )
    figures = {"prompts": f"{merged.num_rows:,}", "sources": f"{len(sources):,}", "set aside": f"{aside.num_rows:,}"}
    show("prompts", charts.page(figures, charts.prompt_samples(merged)))
    return Merged(
        FlyteFile(str(write_table(scratch("prompts.parquet"), merged, PROMPTS, lineage))),
        FlyteFile(str(write_table(scratch("rejected.parquet"), aside, REJECTED, lineage))),
        watch.summary(
            f"{merged.num_rows:,} prompts from {len(sources)} sources; {aside.num_rows:,} rows set aside",
            prompts=merged.num_rows,
            set_aside=aside.num_rows,
        ),
    )


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def mix_prompts(graded: Parquet, spec: MixtureSpec) -> Mixture:
    """The training mixture in training order and the held-out prompts, disjoint by prompt."""
    from tasks import charts
    from tasks.mixing.mix import mix

    watch = Stopwatch("mixing")
    mixed = mix(read_table(local(graded), GRADED), spec)
    lineage = made_from(__name__, inputs={"kept": content_digest(graded)}, seed=spec.seed, mixture=spec)
    figures = {"to train on": f"{mixed.train.num_rows:,}", "held out": f"{mixed.heldout.num_rows:,}"}
    show("mixture", charts.page(figures, charts.table(mixed.counts), charts.prompt_samples(mixed.train)))
    return Mixture(
        FlyteFile(str(write_table(scratch("mixture.parquet"), mixed.train, MIXTURE, lineage))),
        FlyteFile(str(write_table(scratch("heldout.parquet"), mixed.heldout, GRADED, lineage))),
        watch.summary(
            f"{mixed.train.num_rows:,} prompts to train on, {mixed.heldout.num_rows:,} held out", counts=mixed.counts
        ),
    )
