"""Sourcing as Flyte tasks: one cached task per source, then one table of all prompts."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import Resources, dynamic
from flytekit.types.file import FlyteFile

from images import DATA
from tasks.platform import Parquet, Stopwatch, content_digest, local, scratch, show, shown_stage, stage
from tasks.schemas import PROMPTS, REJECTED, StageSummary, read_table, write_table
from tasks.sourcing.loaders import fingerprint
from tasks.sourcing.spec import DataSpec, SourceSpec


class Sourced(NamedTuple):
    prompts: Parquet
    rejected: Parquet
    summary: StageSummary


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"))
def source_prompts(source: SourceSpec, max_prompt_chars: int, content: str) -> Sourced:
    """One source as a prompts table, and the rows that cannot be used with their reasons.

    Args:
        source: what to read and how.
        max_prompt_chars: longer prompts are set aside.
        content: the source's `fingerprint`, so that changed files miss the cache.
    """
    from tasks.sourcing.prompts import build_prompts

    watch = Stopwatch(f"sourcing: {source.name}")
    built = build_prompts(source, max_prompt_chars)
    lineage = {"source": source.model_dump(mode="json"), "content": content}
    prompts = write_table(scratch("prompts.parquet"), built.prompts, PROMPTS, lineage)
    rejected = write_table(scratch("rejected.parquet"), built.rejected, REJECTED, lineage)
    headline = "{usable:,} prompts from {read:,} rows; {rejected:,} set aside".format(**built.counts)
    show("prompts", built.prompts.slice(0, 20).to_pandas().to_html())
    return Sourced(
        FlyteFile(str(prompts)),
        FlyteFile(str(rejected)),
        watch.summary(headline, counts=built.counts, reasons=built.reasons),
    )


@stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def merge_sources(prompts: list[Parquet], rejected: list[Parquet], summaries: list[StageSummary]) -> Sourced:
    """All sources as one table; a prompt that two sources share stays with the first."""
    import pyarrow as pa

    from tasks.sourcing.prompts import merge

    watch = Stopwatch("sourcing")
    merged, duplicates = merge([read_table(local(table), PROMPTS) for table in prompts])
    aside = pa.concat_tables([*(read_table(local(table), REJECTED) for table in rejected), duplicates])
    lineage = {"sources": [content_digest(table) for table in prompts]}
    summary = watch.summary(
        f"{merged.num_rows:,} prompts from {len(prompts)} sources; {aside.num_rows:,} rows set aside",
        prompts=merged.num_rows,
        set_aside=aside.num_rows,
        seconds_of_sources={item.stage: item.seconds for item in summaries},
    )
    return Sourced(
        FlyteFile(str(write_table(scratch("prompts.parquet"), merged, PROMPTS, lineage))),
        FlyteFile(str(write_table(scratch("rejected.parquet"), aside, REJECTED, lineage))),
        summary,
    )


@dynamic(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"))
def source_all(spec: DataSpec) -> Sourced:
    """One `source_prompts` for each source of `spec`, each cached on its own, then `merge_sources`."""
    tables = [
        source_prompts(source=source, max_prompt_chars=spec.max_prompt_chars, content=fingerprint(source))
        for source in spec.sources
    ]
    return merge_sources(
        prompts=[table.prompts for table in tables],
        rejected=[table.rejected for table in tables],
        summaries=[table.summary for table in tables],
    )
