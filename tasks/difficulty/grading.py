"""Rollouts into pass rates, and pass rates into a selection."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tasks.failures import MistakeError
from tasks.schemas import GRADED, REJECTED, table_from_rows, validate


class GradingError(MistakeError):
    """Nothing is left to train on, or the tables do not belong together."""


def grade(prompts: pa.Table, rollouts: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The prompts with the pass rates that their judged rollouts give.

    Args:
        prompts: table of `PROMPTS`.
        rollouts: table of `ROLLOUTS` of these prompts.

    Returns:
        `GRADED` in the order of `prompts`, and `REJECTED` for prompts without a judged rollout.

    Raises:
        GradingError: the rollouts are of other prompts.
    """
    ids = prompts.column("prompt_id").to_pylist()
    frame = rollouts.select(["prompt_id", "score", "num_tokens", "error"]).to_pandas()
    unknown = set(frame["prompt_id"]) - set(ids)
    if unknown:
        raise GradingError(f"{len(unknown)} rollouts' prompts, such as {min(unknown)}, are not among the prompts")
    judged = frame[frame["score"].notna()].groupby("prompt_id")
    stats = pd.DataFrame(
        {"pass_rate": judged["score"].mean(), "num_rollouts": judged.size(), "mean_tokens": judged["num_tokens"].mean()}
    )
    known = pc.is_in(prompts.column("prompt_id"), pa.array(stats.index, pa.string()))
    kept = prompts.filter(known)
    stats = stats.loc[kept.column("prompt_id").to_pylist()]
    graded = kept
    for name in ("pass_rate", "num_rollouts", "mean_tokens"):
        graded = graded.append_column(GRADED.field(name), pa.array(stats[name], type=GRADED.field(name).type))
    errors = frame[frame["error"].notna()].groupby("prompt_id")["error"].first().to_dict()
    aside = [
        {
            "source": row["source"],
            "row": -1,
            "reason": f"no rollout could be judged: {errors.get(row['prompt_id'], 'none was sampled')}",
            "value": row["prompt_id"],
        }
        for row in prompts.filter(pc.invert(known)).select(["prompt_id", "source"]).to_pylist()
    ]
    return validate(graded, GRADED, "graded prompts"), table_from_rows(aside, REJECTED, "ungraded prompts")


def select(graded: pa.Table, max_pass_rate: float) -> pa.Table:
    """The prompts whose pass rate is strictly below `max_pass_rate`.

    Raises:
        GradingError: none is.
    """
    kept = graded.filter(pc.less(graded.column("pass_rate"), max_pass_rate))
    if not kept.num_rows:
        lowest = pc.min(graded.column("pass_rate")).as_py()
        raise GradingError(
            f"no prompt has a pass rate below {max_pass_rate:g} (max_pass_rate); the lowest is {lowest:g} of "
            f"{graded.num_rows} prompts"
        )
    return kept
