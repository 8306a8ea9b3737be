"""Computes pass rates and mean scores from rollouts, and selects prompts by their mean scores."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tasks.difficulty.stopping import Bounds
from tasks.failures import MistakeError
from tasks.tables.losses import Reasons
from tasks.tables.parquet import add_user_columns, build_table, validate
from tasks.tables.schemas import COMPARED, GRADED, SET_ASIDE, set_aside_prompt

MEASURED = ("pass_rate", "mean_score", "num_rollouts", "mean_tokens")
"""The columns of `GRADED` that are computed from rollouts."""

TOO_EASY, TOO_HARD = "too easy", "too hard"
"""The reasons of prompts with a mean score outside of the bounds, for counts."""


class GradingError(MistakeError):
    """Raised if no prompt is left to train on, or if rollouts belong to other prompts."""


def grade(prompts: pa.Table, rollouts: pa.Table, set_aside: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Compute the prompts' pass rates and mean scores from their scored rollouts.

    Args:
        prompts: table of `PROMPTS`.
        rollouts: table of `ROLLOUTS` of these prompts.
        set_aside: table of `SET_ASIDE`: the prompts that were not sampled.

    Returns:
        `GRADED` in the order of `prompts`, and `SET_ASIDE` for the other prompts without a scored rollout.

    Raises:
        GradingError: the rollouts belong to other prompts.
    """
    ids = prompts.column("prompt_id").to_pylist()
    frame = rollouts.select(["prompt_id", "score", "passed", "num_tokens", "error"]).to_pandas()
    unknown = set(frame["prompt_id"]) - set(ids)
    if unknown:
        raise GradingError(f"{len(unknown)} rollouts' prompts, such as {min(unknown)}, are not among the prompts")
    judged = frame[frame["score"].notna()].astype({"passed": float}).groupby("prompt_id")
    stats = judged.agg(
        pass_rate=("passed", "mean"),
        mean_score=("score", "mean"),
        num_rollouts=("score", "size"),
        mean_tokens=("num_tokens", "mean"),
    )
    known = pc.is_in(prompts.column("prompt_id"), pa.array(stats.index, pa.string()))
    unsampled = pc.is_in(prompts.column("prompt_id"), set_aside.column("prompt_id").combine_chunks())
    graded = prompts.filter(known)
    stats = stats.loc[graded.column("prompt_id").to_pylist()]
    for name in MEASURED:
        graded = graded.append_column(GRADED.field(name), pa.array(stats[name], type=GRADED.field(name).type))
    errors = frame[frame["error"].notna()].groupby("prompt_id")["error"].first().to_dict()
    aside = [
        set_aside_prompt(
            "difficulty",
            "unjudged",
            row,
            f"no rollout could be scored: {errors.get(row['prompt_id'], 'none was sampled')}",
        )
        for row in prompts.filter(pc.invert(pc.or_(known, unsampled))).to_pylist()
    ]
    graded = validate(graded, add_user_columns(GRADED, graded.schema), "graded prompts")
    return graded, build_table(aside, SET_ASIDE, "ungraded prompts")


def fill_ungraded(prompts: pa.Table, set_aside: pa.Table) -> pa.Table:
    """Return the prompts that are not in `set_aside` as a table of `GRADED` whose difficulty is not measured (null).

    Args:
        prompts: table of `PROMPTS`.
        set_aside: table of `SET_ASIDE`: the prompts that are too long, or cannot be verified.
    """
    aside = pc.is_in(prompts.column("prompt_id"), set_aside.column("prompt_id").combine_chunks())
    table = prompts.filter(pc.invert(aside))
    for name in MEASURED:
        table = table.append_column(GRADED.field(name), pa.nulls(table.num_rows, GRADED.field(name).type))
    return validate(table, add_user_columns(GRADED, table.schema), "prompts that are not graded")


def compare(graded: Sequence[pa.Table], variants: Sequence[str]) -> pa.Table:
    """Return a table of `COMPARED` for the prompts that are graded under every variant.

    Args:
        graded: tables of `GRADED`, one for each variant.
        variants: the names of the variants.

    Raises:
        GradingError: no prompt is graded under all of them.
    """
    common = graded[0].column("prompt_id").unique()
    for table in graded[1:]:
        common = common.filter(pc.is_in(common, table.column("prompt_id").unique()))
    if not len(common):
        raise GradingError(f"no prompt has scored rollouts under all of {', '.join(variants)}")
    parts = []
    for table, name in zip(graded, variants, strict=True):
        rows = table.filter(pc.is_in(table.column("prompt_id"), common))
        named = pa.array([name] * rows.num_rows, pa.string())
        parts.append(rows.append_column(COMPARED.field("variant"), named).select(COMPARED.names).cast(COMPARED))
    return pa.concat_tables(parts)


def select(graded: pa.Table, bounds: Bounds) -> pa.Table:
    """Return the prompts of a table of `GRADED` whose mean score is within `bounds`.

    Raises:
        GradingError: no prompt has such a score, or no prompt is graded.
    """
    scores = graded.column("mean_score")
    selected = graded.filter(pa.array([bounds.keep(score) for score in scores.to_pylist()], pa.bool_()))
    if not graded.num_rows:
        raise GradingError("no prompt has a scored rollout: the column error of the rollouts has the reasons")
    if not selected.num_rows:
        extremes = pc.min_max(scores).as_py()
        raise GradingError(
            f"no prompt has a mean score {bounds} (difficulty.max_mean_score, min_mean_score); those of "
            f"{graded.num_rows} prompts lie between {extremes['min']:g} and {extremes['max']:g}"
        )
    return selected


def count_outside_bounds(graded: pa.Table, bounds: Bounds) -> Reasons:
    """Return the number of prompts of a table of `GRADED` that `select` drops, by source and reason."""
    reasons: Reasons = defaultdict(Counter)
    for source, score in zip(graded.column("source").to_pylist(), graded.column("mean_score").to_pylist(), strict=True):
        if not bounds.keep(score):
            reasons[source][TOO_EASY if bounds.is_too_easy(score) else TOO_HARD] += 1
    return reasons
