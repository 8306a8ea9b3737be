"""Lists the conflicts of constraints: pairs that one answer cannot, or cannot naturally, satisfy together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path

from tasks.sourcing.generators.constraints import CONSTRAINTS

FILE = Path(__file__).with_suffix(".json")
"""Ids of constraints in conflict.

`alone`: these determine the whole answer, so that no other constraint can be combined with them. `one_of`: at most one
of each group, because its members determine the whole answer, want the same place in it, or say the same twice.
`apart`: none of `first` with any of `second`, and the reason.
"""

_CONTENT = json.loads(FILE.read_text())

ALONE: tuple[str, ...] = tuple(_CONTENT["alone"])
"""Constraints that determine the whole answer, so that no other constraint can be combined with them."""

CONFLICTS: frozenset[frozenset[str]] = frozenset(
    frozenset(pair)
    for pairs in (
        *(combinations(group, 2) for group in _CONTENT["one_of"]),
        *(product(apart["first"], apart["second"]) for apart in _CONTENT["apart"]),
        ((name, other) for name in ALONE for other in CONSTRAINTS if other != name),
    )
    for pair in pairs
)
"""The pairs of constraint ids in conflict."""


def can_combine(ids: Sequence[str]) -> bool:
    """Return True if one answer can satisfy all constraints."""
    return not any(frozenset(pair) in CONFLICTS for pair in combinations(ids, 2))
