"""Collects the values of each named reward from a table of scored responses."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def collect_reward_values(rollouts: pa.Table) -> dict[str, list[float]]:
    """Return the values of each reward in a table of `ROLLOUTS` by name, without responses if it does not apply.

    Responses whose only reward is the verifier's score are not included.
    """
    parts = pc.list_flatten(rollouts.column("rewards"))
    names, values = (pc.struct_field(parts, name) for name in ("name", "value"))
    applies = pc.is_valid(values)
    names, values = names.filter(applies), values.filter(applies)
    return {name: values.filter(pc.equal(names, name)).to_pylist() for name in names.unique().to_pylist()}
