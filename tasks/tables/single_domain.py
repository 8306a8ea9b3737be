"""Finds the rows of an evaluation that repeat the results on all held-out prompts, if these have one domain."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa

from tasks.tables.schemas import EVERYTHING


def drop_repeats(evaluation: pa.Table) -> pa.Table:
    """Return a table of `EVALUATION` without the rows of the domain, if all held-out prompts are of one.

    These rows have the values of the rows of all prompts. The table of a run keeps them; a page shows them once.
    """
    rows: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
    for row in evaluation.to_pylist():
        benchmark = row.pop("benchmark")
        rows[benchmark].add(tuple(row.values()))
    repeats = [name for name, own in rows.items() if name != EVERYTHING and own == rows.get(EVERYTHING)]
    if len(repeats) != 1:  # with two domains, each has only some of the prompts
        return evaluation
    return evaluation.filter(pa.array([name != repeats[0] for name in evaluation["benchmark"].to_pylist()], pa.bool_()))
