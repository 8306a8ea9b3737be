"""The prompts of several sources as one table."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tasks.schemas import PROMPTS, REJECTED, rejection, table_from_rows


def merge(tables: Sequence[pa.Table], order: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """All prompts, source after source; a prompt that two sources share stays with the first.

    Args:
        tables: of `PROMPTS`, each with the prompts of one source or of several.
        order: the names of the sources.

    Returns:
        A table of `PROMPTS`, and one of `REJECTED` with the prompts that an earlier source already had.
    """
    prompts = pa.concat_tables([PROMPTS.empty_table(), *tables])
    prompts = pa.concat_tables(prompts.filter(pc.equal(prompts["source"], name)) for name in order)
    holder: dict[str, str] = {}
    kept, rejected = [], []
    for row in prompts.select(["prompt_id", "source", "messages", "metadata"]).to_pylist():
        earlier = holder.setdefault(row["prompt_id"], row["source"])
        kept.append(earlier == row["source"])
        if not kept[-1]:
            index, value = json.loads(row["metadata"])["row"], row["messages"][-1]["content"]
            rejected.append(rejection(row["source"], index, f"duplicate of a prompt of source {earlier!r}", value))
    return prompts.filter(pa.array(kept, pa.bool_())).combine_chunks(), table_from_rows(
        rejected, REJECTED, "rejected prompts"
    )
