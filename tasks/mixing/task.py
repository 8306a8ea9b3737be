"""Mixing as a Flyte task."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import Resources
from flytekit.types.file import FlyteFile

from images import DATA
from tasks.digest import code_digest
from tasks.mixing.spec import MixtureSpec
from tasks.platform import Parquet, Stopwatch, content_digest, local, scratch, show, shown_stage, stage
from tasks.schemas import GRADED, MIXTURE, PROMPTS, StageSummary, read_table, write_table


class Mixture(NamedTuple):
    mixture: Parquet
    heldout: Parquet
    summary: StageSummary


@stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def check_mixture(prompts: Parquet, spec: MixtureSpec) -> Parquet:
    """The prompts as they came, once it is known that they could fill the mixture: before rollouts are paid for."""
    from tasks.mixing.mix import check

    check(read_table(local(prompts), PROMPTS), spec)
    return FlyteFile(str(local(prompts)))


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def mix_prompts(graded: Parquet, spec: MixtureSpec) -> Mixture:
    """The training mixture in training order and the held-out prompts, disjoint by prompt."""
    import pandas as pd

    from tasks.mixing.mix import mix

    watch = Stopwatch("mixing")
    mixed = mix(
        read_table(local(graded), GRADED),
        spec,
        upstream={"graded": content_digest(graded)},
        code_version=code_digest(__name__),
    )
    show("mixture", pd.DataFrame(mixed.counts).to_html(index=False))
    return Mixture(
        FlyteFile(str(write_table(scratch("mixture.parquet"), mixed.train, MIXTURE, mixed.lineage))),
        FlyteFile(str(write_table(scratch("heldout.parquet"), mixed.heldout, GRADED, mixed.lineage))),
        watch.summary(
            f"{mixed.train.num_rows:,} prompts to train on, {mixed.heldout.num_rows:,} held out", counts=mixed.counts
        ),
    )
