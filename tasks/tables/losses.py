"""Counts the rows that each source loses in a stage, and warns about sources that lose most of them."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.tables.schemas import StageSummary

logger = logging.getLogger(__name__)

WARN_IF_LOST = 0.5
"""Share of a source's rows that a stage may drop without a warning, if the data file does not say otherwise."""
REASONS = 3
"""Number of reasons in a warning, the commonest first."""
_NUMBER = r"\d[\d,.]*"

Reasons = dict[str, Counter[str]]
"""The number of dropped rows by source and by reason."""


def extract_general_reasons(set_aside: pa.Table) -> pa.ChunkedArray:
    """Return the reasons of a table of `SET_ASIDE` without their numbers and what follows the first colon."""
    reasons = pc.list_element(pc.split_pattern(set_aside.column("reason"), ":", max_splits=1), 0)
    return pc.replace_substring_regex(reasons, _NUMBER, "…")


def count_reasons(tables: Iterable[pa.Table]) -> dict[str, Reasons]:
    """Return the number of dropped rows by stage, source and reason.

    Args:
        tables: tables of `SET_ASIDE`.
    """
    counts: dict[str, Reasons] = defaultdict(lambda: defaultdict(Counter))
    for table in tables:
        named = table.select(["stage", "source"]).append_column("reason", extract_general_reasons(table))
        for row in named.group_by(["stage", "source", "reason"]).aggregate([([], "count_all")]).to_pylist():
            counts[row["stage"]][row["source"]][row["reason"]] += row["count_all"]
    return counts


def count_losses(left: Mapping[str, int], stages: Mapping[str, Reasons]) -> list[dict[str, Any]]:
    """Return a row for each stage and source that lost rows: `stage`, `source`, `rows`, `lost` and `reasons`.

    `rows` is the number of rows before the stage, and `reasons` contains the numbers of the commonest `REASONS`.

    Args:
        left: the number of rows of each source after the last stage.
        stages: the rows that each of consecutive stages dropped, by the name of the stage, in order.
    """
    rows: list[dict[str, Any]] = []
    after = Counter(left)
    for stage, by_source in reversed(list(stages.items())):
        for source in sorted(by_source, reverse=True):
            lost = by_source[source].total()
            after[source] += lost
            common = sorted(by_source[source].items(), key=lambda entry: (-entry[1], entry[0]))[:REASONS]
            row = {"stage": stage, "source": source, "rows": after[source], "lost": lost, "reasons": dict(common)}
            rows.append(row)
    return rows[::-1]


def losses_of(stage: str, rows: pa.Table, reasons: Reasons) -> list[dict[str, Any]]:
    """Return the `count_losses` of one stage, which was given `rows` and dropped some of them for these reasons."""
    left = Counter(rows.column("source").to_pylist())
    left.subtract({source: counts.total() for source, counts in reasons.items()})
    return count_losses(left, {stage: reasons})


def format_warnings(rows: Iterable[Mapping[str, Any]], warn_if_lost: float) -> Iterator[str]:
    """Yield a message for each row of `count_losses` with a share of lost rows above `warn_if_lost`."""
    for row in rows:
        if row["lost"] > warn_if_lost * row["rows"]:
            yield (
                f"source {row['source']!r}: {row['stage']} dropped {row['lost']:,} of {row['rows']:,} rows "
                f"({format_counts(row['reasons'])}); the table set_aside has each of them"
            )


def warn(rows: Iterable[Mapping[str, Any]], warn_if_lost: float) -> None:
    """Log the warnings of `format_warnings`."""
    for message in format_warnings(rows, warn_if_lost):
        logger.warning("%s", message)


def collect_warnings(summaries: Sequence[StageSummary], warn_if_lost: float) -> list[str]:
    """Return the warnings about the losses in the facts of stages, also of cached ones."""
    return [
        sentence for summary in summaries for sentence in format_warnings(summary.facts.get("losses", ()), warn_if_lost)
    ]


def format_counts(reasons: Mapping[str, int]) -> str:
    """Return the reasons as text, such as `12 duplicate of row …; 3 the prompt is empty`."""
    return "; ".join(f"{number:,} {reason}" for reason, number in reasons.items())
