"""Warns about policies that an evaluation often truncates, so that it measures how briefly they answer."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping

import pyarrow as pa

from tasks.machine.packages import HOME
from tasks.tables.schemas import EVERYTHING

logger = logging.getLogger(__name__)

BENCHMARKS = HOME / "data_specs" / "benchmarks"
"""The folder of the benchmarks that ship."""

WARN_IF_TRUNCATED = 0.05
"""Share of a policy's responses to the prompts of a benchmark that may be truncated without a warning."""


def format_truncation_warnings(evaluation: pa.Table) -> list[str]:
    """Return a message for each policy if more than `WARN_IF_TRUNCATED` of its responses are truncated.

    Args:
        evaluation: a table of `EVALUATION`, whose metric `truncated` is the share of responses that end at their
            maximum number of tokens. Each benchmark, the held-out prompts and each of their domains count by
            themselves.
    """
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    for row in evaluation.to_pylist():
        is_share = row["metric"] == "truncated" and row["baseline"] is None
        if is_share and row["value"] > WARN_IF_TRUNCATED:
            what = "held out" if row["benchmark"] == EVERYTHING else row["benchmark"]
            shares[row["policy"]][what] = row["value"]
    return [
        f"policy {policy!r}: responses are cut off at max_tokens ({_format_shares(listed)}), and then seldom have an "
        "answer: raise max_tokens in the evaluation file (sampling for held-out prompts, benchmark_sampling for "
        f"benchmarks){_format_protocols(listed)}"
        for policy, listed in shares.items()
    ]


def _format_shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items())


def _format_protocols(names: Iterable[str]) -> str:
    """Return a clause with the protocols that these benchmarks have for thinking policies, or "" if they have none."""
    protocols = [f"{name}_olmo3" for name in names if (BENCHMARKS / f"{name}_olmo3.yaml").is_file()]
    return f"; a policy that thinks is asked {', '.join(protocols)} instead" if protocols else ""


def warn_of_truncation(evaluation: pa.Table) -> None:
    """Log the messages of `format_truncation_warnings`."""
    for message in format_truncation_warnings(evaluation):
        logger.warning("%s", message)
