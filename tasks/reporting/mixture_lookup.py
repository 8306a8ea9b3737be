"""Explains why a prompt that passed the difficulty filter is not in the mixture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tasks.tables.parquet import read_metadata
from tasks.tables.schemas import row_rank


def why_not_taken(run: Path, prompt: Mapping[str, Any]) -> str:
    """Return why a prompt is not taken, such as `: source 'a' has 95 prompts, and its share of the mixture is 81`.

    Args:
        run: the folder of the run.
        prompt: a row of its table `selected`.
    """
    path = run / "mixture.parquet"
    if not path.is_file():
        return ": the run has no mixture"
    source, spec = prompt["source"], read_metadata(path).get("spec", {})
    is_own = [("source", "=", source)]
    selected = pq.read_table(run / "selected.parquet", columns=["prompt_id", "source", "row"], filters=is_own)
    count = selected.num_rows
    for limit in (spec.get("limits") or {}).get("limits", ()):
        if limit["source"] == source and count > limit["prompts"]:
            ranked = sorted(selected.column("row").to_pylist(), key=lambda row: row_rank(limit["seed"], row))
            if prompt["row"] not in ranked[: limit["prompts"]]:
                return f": source {source!r} has {count} prompts, and its limit is {limit['prompts']}"
            count = limit["prompts"]
    held_out = pq.read_table(run / "heldout.parquet", columns=["source"], filters=is_own).num_rows
    taken = len(set(pq.read_table(path, columns=["prompt_id"], filters=is_own).column("prompt_id").to_pylist()))
    share = f"the mixture has place for {taken} of them, which a hash of their texts decides"
    return f": source {source!r} has {count} prompts, {held_out} are held out, and {share}"
