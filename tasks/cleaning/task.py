"""Defines the Flyte tasks of cleaning, which screen each source separately and merge all sources."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
from flytekit import Resources

from images import DATA
from tasks.cleaning.spec import Contamination, DuplicatesSpec, ScreeningSpec
from tasks.flyte.stages import (
    RESULT,
    Parquet,
    Stopwatch,
    content_digest,
    read_all_batches,
    read_input,
    read_input_batches,
    read_input_schema,
    show,
    shown_stage,
    to_local,
    write_output,
)
from tasks.lineage.provenance import made_from
from tasks.tables.losses import WARN_IF_LOST, count_losses, count_reasons, warn
from tasks.tables.parquet import copy_head
from tasks.tables.schemas import PROMPTS, SET_ASIDE, StageSummary
from tasks.verifiers.config import DEFAULTS, VerifiersConfig

logger = logging.getLogger(__name__)

NONE: list[str] = []
SAMPLED_ROWS = 3
"""Number of prompts of each batch that the deck's samples are chosen from."""


class Cleaned(NamedTuple):
    prompts: Parquet
    set_aside: Parquet
    summary: StageSummary


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def screen_prompts(
    prompts: Parquet,
    evaluation_sets: list[Parquet],
    spec: Annotated[ScreeningSpec, RESULT],
    control_tokens: list[str],
    verifiers: Annotated[VerifiersConfig, RESULT] = DEFAULTS,
) -> Cleaned:
    """Drop the prompts that contain a question of an evaluation set or do not pass the filters.

    Control tokens are escaped if `spec` says so.

    Args:
        prompts: the prompts of one or more sources.
        evaluation_sets: the questions, also tables of prompts.
        spec: the filters, and the rule that decides whether a prompt contains a question.
        control_tokens: the control tokens of the model (`tasks.cleaning.control_tokens`).
        verifiers: the options of the verifiers that check ground truths.
    """
    from tasks.cleaning.control_tokens import ControlTokens
    from tasks.cleaning.frames import FRAMED, find_frames
    from tasks.cleaning.screening import screen

    watch = Stopwatch("cleaning: screening")
    questions = pa.concat_tables([PROMPTS.empty_table(), *(read_input(table, PROMPTS) for table in evaluation_sets)])
    lineage = made_from(
        __name__,
        inputs={
            "prompts": content_digest(prompts),
            "evaluation_sets": [content_digest(table) for table in evaluation_sets],
        },
        screening=spec,
        control_tokens=control_tokens,
        verifiers=verifiers,
    )
    columns = read_input_schema(prompts, PROMPTS)
    control = ControlTokens(control_tokens)
    searched = chain(read_input_batches(prompts, FRAMED), [questions]) if questions.num_rows else []
    frames = find_frames(searched, spec.templates)
    batches = map(control.count, read_input_batches(prompts, columns))
    parts = screen(batches, questions, spec, frames, verifiers, control)
    return _write_outputs("screening", parts, columns, [], lineage, watch, control.counts, questions=questions.num_rows)


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"), ignored_inputs=("warn_if_lost",))
def merge_sources(
    prompts: list[Parquet],
    set_aside: list[Parquet],
    sources: list[str],
    spec: DuplicatesSpec,
    control_tokens: list[str],
    warn_if_lost: float = WARN_IF_LOST,
) -> Cleaned:
    """Merge all `sources`, in order, into one table without duplicates, and concatenate the dropped rows.

    Args:
        prompts: tables of one or more sources each.
        set_aside: the rows that earlier stages dropped.
        sources: the names of the sources.
        spec: the rule for duplicates, and the priority of sources.
        control_tokens: the control tokens of the model. The prompts that contain one are counted.
        warn_if_lost: share of a source's rows above which it is logged that this stage or an earlier one dropped them.
    """
    from tasks.cleaning.control_tokens import ControlTokens
    from tasks.cleaning.merging import Merger

    watch = Stopwatch("cleaning")
    lineage = made_from(
        __name__,
        inputs={"prompts": [content_digest(table) for table in prompts]},
        sources=sources,
        duplicates=spec,
        control_tokens=control_tokens,
    )
    merger = Merger([to_local(table) for table in prompts], sources, spec)
    control = ControlTokens(control_tokens)
    parts = ((control.count(prompts), aside) for prompts, aside in merger.parts())
    cleaned = _write_outputs(
        "merging", parts, merger.columns, set_aside, lineage, watch, control.counts, sources=len(sources)
    )
    warn(cleaned.summary.facts["losses"], warn_if_lost)
    return cleaned


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def count_questions(
    prompts: Parquet, questions: list[Parquet], rule: Contamination, templates: list[str] = NONE
) -> StageSummary:
    """Count the prompts that contain a question of a benchmark, and log how to remove them. No prompt is dropped.

    Args:
        prompts: the prompts of all sources.
        questions: the questions of the benchmarks that the policies will be evaluated on.
        rule: the rule that decides whether a prompt contains a question.
        templates: the templates of the sources and benchmarks, which are not part of a question.
    """
    from tasks import charts
    from tasks.cleaning.contamination import count_overlaps
    from tasks.cleaning.frames import FRAMED, find_frames

    watch = Stopwatch("cleaning: questions of benchmarks")
    asked = pa.concat_tables([PROMPTS.empty_table(), *(read_input(table, PROMPTS) for table in questions)])
    frames = find_frames(chain(read_input_batches(prompts, FRAMED), [asked]), templates)
    counts = count_overlaps(read_input_batches(prompts, read_input_schema(prompts, PROMPTS)), asked, rule, frames)
    rows = [
        {"benchmark": benchmark, "source": source, "prompts that contain a question": count}
        for (benchmark, source), count in sorted(counts.items())
    ]
    for row in rows:
        logger.warning(
            "source %r: %d prompts contain a question of benchmark %r; its name in evaluation_sets of the data file "
            "removes them",
            *(row["source"], row["prompts that contain a question"], row["benchmark"]),
        )
    show("questions of benchmarks", charts.page({"prompts": f"{counts.total():,}"}, charts.render_table(rows, "Found")))
    return watch.summary(f"{counts.total():,} prompts contain a question of a benchmark", overlaps=rows)


def _write_outputs(
    name: str,
    parts: Iterable[tuple[pa.Table, pa.Table]],
    columns: pa.Schema,
    earlier: list[Parquet],
    lineage: dict[str, Any],
    watch: Stopwatch,
    tokens: Counter[str],
    **facts: Any,
) -> Cleaned:
    """Write both tables, the prompts batch by batch. The deck and the summary contain the numbers of dropped rows.

    `name` is the name of this stage in the losses of sources (`tasks.tables.losses`).

    The headline also counts the rows that earlier stages dropped; `facts` only count this stage. The summary also
    contains `tokens`, the number of prompts that contain a control token, by token.
    """
    from tasks.charts import decks

    gone: list[pa.Table] = [SET_ASIDE.empty_table()]
    samples: list[pa.Table] = [columns.empty_table()]
    left = Counter[str]()

    def record_kept() -> Iterator[pa.Table]:
        for prompts, aside in parts:
            gone.append(aside)
            left.update(prompts.column("source").to_pylist())
            samples.append(copy_head(prompts, SAMPLED_ROWS))
            yield prompts

    prompts = write_output("prompts.parquet", record_kept(), columns, lineage)
    set_aside, count = pa.concat_tables(gone), left.total()
    kinds = dict(sorted(Counter(set_aside.column("kind").to_pylist()).items()))
    show("prompts", decks.cleaning(count, set_aside, pa.concat_tables(samples)))
    all_kinds = Counter(kinds)
    for rows in read_all_batches(earlier, SET_ASIDE):
        all_kinds.update(rows.column("kind").to_pylist())
    before = count_reasons(read_all_batches(earlier, SET_ASIDE))
    stages = {"sourcing": before["sourcing"], "screening": before["cleaning"]}
    stages[name] = count_reasons([set_aside])["cleaning"]
    every = chain(read_all_batches(earlier, SET_ASIDE), [set_aside])
    by_kind = ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in sorted(all_kinds.items()))
    headline = f"{count:,} prompts; {all_kinds.total():,} set aside" + (f" ({by_kind})" if by_kind else "")
    if tokens:
        headline += (
            f"; {tokens.total():,} prompts contain control tokens of the model, such as {tokens.most_common()[0][0]}"
        )
    return Cleaned(
        prompts,
        write_output("set_aside.parquet", every, SET_ASIDE, lineage),
        watch.summary(
            headline,
            prompts=count,
            control_tokens=dict(tokens.most_common()),
            set_aside=set_aside.num_rows,
            kinds=kinds,
            losses=count_losses(left, stages),
            **facts,
        ),
    )
