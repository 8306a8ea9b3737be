"""Limits the number of prompts of sources after the difficulty filter (`top_up` of a source)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tasks.mixing.spec import Limits
from tasks.tables.parquet import mapped, take_rows
from tasks.tables.schemas import row_rank


def apply_limits(prompts: pa.Table, limits: Limits) -> tuple[pa.Table, dict[str, tuple[int, int]]]:
    """Keep the prompts within the limits.

    Args:
        prompts: a table with the columns `source` and `row`.
        limits: the limits. Sources without a limit are not changed.

    Returns:
        The prompts in order, and for each source with fewer prompts than its limit, the number of prompts and the
            limit.
    """
    if not limits.limits:
        return prompts, {}
    by_source: dict[str, list[tuple[int, int]]] = {limit.source: [] for limit in limits.limits}
    columns = zip(prompts.column("source").to_pylist(), prompts.column("row").to_pylist(), strict=True)
    for index, (source, row) in enumerate(columns):
        if source in by_source:
            by_source[source].append((row, index))
    beyond: set[int] = set()
    short = {}
    for limit in limits.limits:
        ranked = sorted(by_source[limit.source], key=lambda entry: row_rank(limit.seed, entry[0]))
        beyond.update(index for _, index in ranked[limit.prompts :])
        if len(ranked) < limit.prompts:
            short[limit.source] = (len(ranked), limit.prompts)
    stay = np.setdiff1d(np.arange(prompts.num_rows), sorted(beyond))
    return mapped(take_rows(prompts, stay), prompts.schema), short
