"""Cleaning as Flyte tasks: what each source is asked by itself, and what all are asked together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
from flytekit import Resources
from flytekit.types.file import FlyteFile

from images import DATA
from tasks.cleaning.spec import DuplicatesSpec, ScreeningSpec
from tasks.flyte.stages import RESULT, Parquet, Stopwatch, content_digest, local, scratch, show, shown_stage
from tasks.lineage.provenance import made_from
from tasks.tables.parquet import columns_of, read_batches, read_table, with_user_columns, write_batches
from tasks.tables.schemas import PROMPTS, SET_ASIDE, StageSummary
from tasks.verifiers.config import DEFAULTS, VerifiersConfig


class Cleaned(NamedTuple):
    prompts: Parquet
    set_aside: Parquet
    summary: StageSummary


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def screen_prompts(
    prompts: Parquet,
    evaluation_sets: list[Parquet],
    spec: Annotated[ScreeningSpec, RESULT],
    verifiers: Annotated[VerifiersConfig, RESULT] = DEFAULTS,
) -> Cleaned:
    """The prompts that hold no question of the evaluation sets and pass the filters, and the rows set aside.

    Args:
        prompts: of one source, or of several.
        evaluation_sets: tables of prompts as well.
        spec: what is asked.
        verifiers: how ground truths are judged.
    """
    from tasks.cleaning.screening import screen

    watch = Stopwatch("cleaning: screening")
    questions = pa.concat_tables(
        [PROMPTS.empty_table(), *(read_table(local(each), PROMPTS) for each in evaluation_sets)]
    )
    lineage = made_from(
        __name__,
        inputs={
            "prompts": content_digest(prompts),
            "evaluation_sets": [content_digest(each) for each in evaluation_sets],
        },
        screening=spec,
        verifiers=verifiers,
    )
    columns = with_user_columns(PROMPTS, columns_of(local(prompts)))
    parts = screen(read_batches(local(prompts), columns), questions, spec, verifiers)
    return _written(parts, columns, [], lineage, watch, questions=questions.num_rows)


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def merge_sources(
    prompts: list[Parquet], set_aside: list[Parquet], sources: list[str], spec: DuplicatesSpec
) -> Cleaned:
    """All `sources`, in their order, as one table, each prompt once; `set_aside` and what went now as one table, too.

    Args:
        prompts: of one source or of several each.
        set_aside: the rows that earlier stages set aside.
        sources: names.
        spec: what counts as the same prompt.
    """
    from tasks.cleaning.merging import Merger

    watch = Stopwatch("cleaning")
    lineage = made_from(
        __name__,
        inputs={"prompts": [content_digest(table) for table in prompts]},
        sources=sources,
        duplicates=spec,
    )
    merger = Merger([local(table) for table in prompts], sources, spec)
    earlier = [local(table) for table in set_aside]
    return _written(merger.parts(), merger.columns, earlier, lineage, watch, sources=len(sources))


def _written(
    parts: Iterable[tuple[pa.Table, pa.Table]],
    columns: pa.Schema,
    earlier: list[Path],
    lineage: dict,
    watch: Stopwatch,
    **facts: Any,
) -> Cleaned:
    """Both tables as files, the prompts as they come; on the deck and in the summary what was set aside."""
    from tasks import charts

    aside: list[pa.Table] = [SET_ASIDE.empty_table()]
    sample: list[pa.Table] = [columns.empty_table()]
    count = 0

    def staying() -> Iterator[pa.Table]:
        nonlocal count
        for kept, gone in parts:
            aside.append(gone)
            count += kept.num_rows
            sample.append(kept.slice(0, 3))
            yield kept

    path = write_batches(scratch("prompts.parquet"), staying(), columns, lineage)
    here = pa.concat_tables(aside)
    counted = (
        here.group_by(["source", "kind"]).aggregate([([], "count_all")]).rename_columns(["source", "kind", "rows"])
    )
    rows = counted.sort_by([("source", "ascending"), ("kind", "ascending")]).to_pylist()
    kinds = {
        kind: sum(row["rows"] for row in rows if row["kind"] == kind) for kind in sorted({row["kind"] for row in rows})
    }
    figures = {"prompts": f"{count:,}", "set aside": f"{here.num_rows:,}"}
    show(
        "prompts",
        charts.page(figures, charts.table(rows, "Set aside"), charts.prompt_samples(pa.concat_tables(sample))),
    )
    every = chain(*(read_batches(table, SET_ASIDE) for table in earlier), [here])
    said = ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in kinds.items())
    return Cleaned(
        FlyteFile(str(path)),
        FlyteFile(str(write_batches(scratch("set_aside.parquet"), every, SET_ASIDE, lineage))),
        watch.summary(
            f"{count:,} prompts; {here.num_rows:,} set aside" + (f" ({said})" if said else ""),
            prompts=count,
            set_aside=here.num_rows,
            kinds=kinds,
            **facts,
        ),
    )
