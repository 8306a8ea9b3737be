"""Reads the rewards by name of judged responses."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def reward_values(rollouts: pa.Table) -> dict[str, list[float]]:
    """Return the values of each reward of a table of `ROLLOUTS`, by name, of the responses to which it applies.

    Responses whose verifier's score is their only reward have none.
    """
    parts = pc.list_flatten(rollouts.column("rewards"))
    names, values = (pc.struct_field(parts, name) for name in ("name", "value"))
    applies = pc.is_valid(values)
    names, values = names.filter(applies), values.filter(applies)
    return {name: values.filter(pc.equal(names, name)).to_pylist() for name in names.unique().to_pylist()}
