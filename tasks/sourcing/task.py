"""Sourcing as a Flyte task."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
from flytekit import Resources
from flytekit.types.file import FlyteFile

from images import DATA
from tasks.flyte.stages import Parquet, Stopwatch, scratch, show, shown_stage
from tasks.lineage.provenance import made_from
from tasks.sourcing.spec import SourceBatch
from tasks.tables.parquet import write_table
from tasks.tables.schemas import PROMPTS, SET_ASIDE, StageSummary


class Sourced(NamedTuple):
    prompts: Parquet
    set_aside: Parquet
    summary: StageSummary


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"))
def source_prompts(batch: SourceBatch, max_prompt_chars: int) -> Sourced:
    """The sources of a batch as one prompts table, and the rows that cannot be used with their reasons.

    Args:
        batch: what to read and how.
        max_prompt_chars: longer prompts are set aside.
    """
    from tasks import charts
    from tasks.sourcing.prompts import build_prompts

    names = ", ".join(source.name for source in batch.sources)
    watch = Stopwatch(f"sourcing: {names}")
    built = {source.name: build_prompts(source, max_prompt_chars) for source in batch.sources}
    found = pa.concat_tables([each.prompts for each in built.values()])
    aside = pa.concat_tables([each.set_aside for each in built.values()])
    lineage = made_from(
        __name__,
        inputs={"contents": batch.contents},
        seed={source.name: source.seed for source in batch.sources},
        sources=[source.model_dump(mode="json") for source in batch.sources],
        max_prompt_chars=max_prompt_chars,
    )
    prompts = write_table(scratch("prompts.parquet"), found, PROMPTS, lineage)
    set_aside = write_table(scratch("set_aside.parquet"), aside, SET_ASIDE, lineage)
    read = sum(each.counts["read"] for each in built.values())
    figures = {"prompts": f"{found.num_rows:,}", "rows read": f"{read:,}", "set aside": f"{aside.num_rows:,}"}
    reasons = [
        {"source": name, "reason": reason, "rows": count}
        for name, each in built.items()
        for reason, count in each.reasons.items()
    ]
    show("prompts", charts.page(figures, charts.table(reasons, "Set aside"), charts.prompt_samples(found)))
    return Sourced(
        FlyteFile(str(prompts)),
        FlyteFile(str(set_aside)),
        watch.summary(
            f"{found.num_rows:,} prompts from {read:,} rows; {aside.num_rows:,} set aside",
            counts={name: each.counts for name, each in built.items()},
            reasons={name: each.reasons for name, each in built.items()},
        ),
    )
