"""Computes the sampling cost of an evaluation by benchmark and policy, for the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.reporting.sections import EVALUATION_STAGE
from tasks.tables.schemas import StageSummary


def compute_sampling_costs(
    summaries: Sequence[StageSummary], run: str = "", price_per_gpu_hour: float | None = None
) -> list[dict[str, Any]]:
    """Return the sampling cost of each policy on each benchmark, from the facts of the evaluations.

    A row has the keys `benchmark` and `policy`; `responses` and `tokens`, including cached ones; `generated_responses`,
    `generated_tokens` and `engine_seconds`, for what was generated when the stage ran; `price`, the price of the GPU
    hours in these seconds (None if nothing was generated, no GPU was used, or no price is given); and `origin`.

    Args:
        summaries: summaries of all stages. Evaluations are named by policy (`sections.add_policy_names`).
        run: this run's name.
        price_per_gpu_hour: price of one GPU hour.
    """
    rows = []
    for summary in summaries:
        stage, _, policy = summary.stage.partition(": ")
        for took in summary.facts.get("benchmarks", ()) if stage == EVALUATION_STAGE else ():
            has_price = price_per_gpu_hour is not None and summary.gpus and took["generated_responses"]
            hours = took["engine_seconds"] * summary.gpus / 3600
            figures = {name: value for name, value in took.items() if name != "name"}
            rows.append(
                {
                    "benchmark": took["name"],
                    "policy": policy,
                    **figures,
                    "price": hours * (price_per_gpu_hour or 0.0) if has_price else None,
                    "origin": _describe_origin(took, in_this_run=summary.run == run),
                }
            )
    names = list(dict.fromkeys(row["benchmark"] for row in rows))
    return sorted(rows, key=lambda row: names.index(row["benchmark"]))


def _describe_origin(took: dict[str, Any], *, in_this_run: bool) -> str:
    """Return a description of the origin of a benchmark's responses."""
    if not took["generated_responses"]:
        return "from the cache"
    when = "this run" if in_this_run else "an earlier run"
    return when if took["generated_responses"] == took["responses"] else f"{when}, and from the cache"
