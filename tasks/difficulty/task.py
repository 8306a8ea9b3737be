"""Difficulty as Flyte tasks: pass rates from the rollouts of `tasks.difficulty.rollout_tasks`."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
from flytekit import Resources
from flytekit.types.file import FlyteFile

from images import DATA
from tasks.difficulty.stopping import Bounds
from tasks.flyte.stages import Parquet, Stopwatch, content_digest, local, scratch, show, shown_stage
from tasks.lineage.provenance import made_from
from tasks.tables.parquet import columns_of, read_batches, read_table, with_user_columns, write_table
from tasks.tables.schemas import COMPARED, PROMPTS, ROLLOUTS, SET_ASIDE, StageSummary

_SCORED = pa.schema([ROLLOUTS.field(name) for name in ("prompt_id", "score", "num_tokens", "error")])
"""What grading asks of rollouts: no text, which is most of them."""


class Graded(NamedTuple):
    graded: Parquet
    kept: Parquet
    set_aside: Parquet
    summary: StageSummary


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def select_prompts(prompts: Parquet, rollouts: Parquet, set_aside: Parquet, bounds: Bounds) -> Graded:
    """Pass rates from the rollouts, and the prompts that are neither too easy nor too hard.

    `set_aside` are the prompts that were not sampled.
    """
    from tasks import charts
    from tasks.difficulty.grading import grade, select

    watch = Stopwatch("difficulty")
    graded, unjudged = grade(
        read_table(local(prompts), with_user_columns(PROMPTS, columns_of(local(prompts)))),
        pa.concat_tables(
            [_SCORED.empty_table(), *(read_batches(local(rollouts), _SCORED))],
        ),
        read_table(local(set_aside), SET_ASIDE),
    )
    kept = select(graded, bounds)
    too_easy = sum(rate >= bounds.max_pass_rate for rate in graded.column("pass_rate").to_pylist())
    lineage = made_from(
        __name__,
        inputs={"prompts": content_digest(prompts), "rollouts": content_digest(rollouts)},
        bounds=bounds,
    )
    show(
        "pass rates",
        charts.page(
            {"graded": f"{graded.num_rows:,}", "kept": f"{kept.num_rows:,}", "kept if": str(bounds)},
            charts.deck(charts.pass_rates(graded, bounds.max_pass_rate)),
        ),
    )
    summary = watch.summary(
        f"{kept.num_rows:,} of {graded.num_rows:,} prompts have a pass rate {bounds}",
        graded=graded.num_rows,
        kept=kept.num_rows,
        too_easy=too_easy,
        too_hard=graded.num_rows - kept.num_rows - too_easy,
        ungraded=unjudged.num_rows,
        max_pass_rate=bounds.max_pass_rate,
    )
    return Graded(
        FlyteFile(str(write_table(scratch("graded.parquet"), graded, graded.schema, lineage))),
        FlyteFile(str(write_table(scratch("kept.parquet"), kept, kept.schema, lineage))),
        FlyteFile(str(write_table(scratch("set_aside.parquet"), unjudged, SET_ASIDE, lineage))),
        summary,
    )


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def compare_variants(prompts: Parquet, rollouts: list[Parquet], variants: list[str]) -> Parquet:
    """The pass rates of several checkpoints, or of ways to use one, on the prompts that all of them answered.

    Args:
        prompts: of all rollouts.
        rollouts: one table for each variant.
        variants: their names; without any, the table is empty.
    """
    from tasks import charts
    from tasks.difficulty.grading import compare, grade

    table = read_table(local(prompts), PROMPTS)
    scored = (pa.concat_tables([_SCORED.empty_table(), *read_batches(local(each), _SCORED)]) for each in rollouts)
    graded = [grade(table, each, SET_ASIDE.empty_table())[0] for each in scored]
    compared = compare(graded, variants) if variants else COMPARED.empty_table()
    digests = [content_digest(each) for each in rollouts]
    lineage = made_from(__name__, inputs={"prompts": content_digest(prompts), "rollouts": digests}, variants=variants)
    sums = [([], "count_all"), ("pass_rate", "mean"), ("mean_tokens", "mean")]
    rows = (
        compared.group_by(["domain", "variant"])
        .aggregate(sums)
        .rename_columns(["domain", "variant", "prompts", "pass_rate", "mean_tokens"])
    )
    ordered = rows.sort_by([("domain", "ascending"), ("variant", "ascending")]).to_pylist()
    show("checkpoints compared", charts.page({"variants": f"{len(variants):,}"}, charts.table(ordered, "By domain")))
    return FlyteFile(str(write_table(scratch("compared.parquet"), compared, COMPARED, lineage)))
