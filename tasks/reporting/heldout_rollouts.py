"""Selects the rollouts of held-out prompts by the two policies that the report compares."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tasks.tables.schemas import AFTER, BEFORE, HELDOUT, ROLLOUTS


def select_heldout_rollouts(parts: Iterable[pa.Table]) -> tuple[pa.Table, pa.Table]:
    """Return the `ROLLOUTS` of the held-out prompts from the initial checkpoint and from the trained policy.

    Args:
        parts: `EVALUATION_ROLLOUTS` of all policies and benchmarks. Only the selected rows stay in memory.
    """
    before, after = [ROLLOUTS.empty_table()], [ROLLOUTS.empty_table()]
    for part in parts:
        heldout = part.filter(pc.equal(part["benchmark"], HELDOUT))
        for policy, picked in ((BEFORE, before), (AFTER, after)):
            picked.append(heldout.filter(pc.equal(heldout["policy"], policy)).select(ROLLOUTS.names))
    return pa.concat_tables(before), pa.concat_tables(after)
