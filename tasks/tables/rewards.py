"""Reads the rewards by name of judged responses."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa


def reward_values(rollouts: pa.Table) -> dict[str, list[float]]:
    """Return the values of each reward of a table of `ROLLOUTS`, by name, of the responses to which it applies.

    Responses whose verifier's score is their only reward have none.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for parts in rollouts.column("rewards").to_pylist():
        for part in parts or ():
            if part["value"] is not None:
                values[part["name"]].append(part["value"])
    return dict(values)
