"""Defines the Flyte task that reads sources."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
from flytekit import Resources

from images import DATA
from tasks.config.loading import SpecError
from tasks.flyte.stages import Parquet, Stopwatch, config_digest, show, shown_stage, write_output
from tasks.lineage.provenance import made_from
from tasks.sourcing.spec import SourceBatch
from tasks.tables.parquet import copy_head
from tasks.tables.schemas import PROMPTS, READ, SET_ASIDE, StageSummary, canonical_json

SAMPLED_ROWS = 3
"""Number of prompts of each part that the deck's samples are chosen from."""


class Sourced(NamedTuple):
    """The prompts, the rows that cannot be used, the summary, and the counts of what was read by source, as JSON."""

    prompts: Parquet
    set_aside: Parquet
    summary: StageSummary
    read: str


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"), ignored_inputs=("batch",))
def source_prompts(batch: SourceBatch, content: str, max_prompt_chars: int) -> Sourced:
    """Read the sources of a batch into a table of prompts, and the rows that cannot be used into another table.

    Args:
        batch: the sources. The location of their files is not part of the cache key.
        content: the digest of the sources with the content of their files (`tasks.flyte.stages.config_digest`).
        max_prompt_chars: maximum number of characters of a prompt; longer ones are dropped.

    Raises:
        SpecError: `content` is not the digest of the sources, or the content of a source does not match its
            fingerprint, or cannot be read.
    """
    from tasks.charts import decks
    from tasks.sourcing.loaders import check_unchanged
    from tasks.sourcing.prompts import PromptReader

    if content != config_digest(batch):
        raise SpecError(f"content = {content!r}: not the digest of the sources; leave the cache out, or correct it")
    for source in batch.sources:
        check_unchanged(source)
    gc.freeze()  # collections while rows are read would look at all modules again, which takes a sixth of the time
    watch = Stopwatch(f"sourcing: {', '.join(source.name for source in batch.sources)}")
    readers = {source.name: PromptReader(source, max_prompt_chars) for source in batch.sources}
    lineage = made_from(
        __name__,
        inputs={"contents": [str(source.fingerprint) for source in batch.sources]},
        seed={source.name: source.seed for source in batch.sources},
        sources=[source.model_dump(mode="json") for source in batch.sources],
        max_prompt_chars=max_prompt_chars,
    )
    gone: list[pa.Table] = [SET_ASIDE.empty_table()]
    samples: list[pa.Table] = [PROMPTS.empty_table()]

    def record_usable() -> Iterator[pa.Table]:
        for prompts, set_aside in chain.from_iterable(reader.parts() for reader in readers.values()):
            gone.append(set_aside)
            samples.append(copy_head(prompts, SAMPLED_ROWS))
            yield prompts

    prompts = write_output("prompts.parquet", record_usable(), PROMPTS, lineage)
    set_aside = pa.concat_tables(gone)
    counts = {name: reader.counts for name, reader in readers.items()}
    usable_rows, read = (sum(count[key] for count in counts.values()) for key in ("usable", "read"))
    reasons = {name: reader.reasons for name, reader in readers.items()}
    counted = {source.name: readers[source.name].read | {"where": source.where} for source in batch.sources}
    show("prompts", decks.sourcing(usable_rows, pa.concat_tables(samples), read, set_aside.num_rows, reasons))
    return Sourced(
        prompts,
        write_output("set_aside.parquet", set_aside, SET_ASIDE, lineage | {READ: counted}),
        watch.summary(
            f"{usable_rows:,} prompts from {read:,} rows; {set_aside.num_rows:,} set aside",
            counts=counts,
            reasons=reasons,
        ),
        canonical_json(counted),
    )
