"""The share of a long table, and of the examples of a property, that `make test` tries: `make test-all` tries all."""

import os
from collections.abc import Sequence
from typing import TypeVar

Row = TypeVar("Row")
COMPLETE = os.environ.get("RLVR_EXAMPLES") == "all"


def examples(number: int) -> int:
    """Return `number` where `RLVR_EXAMPLES` is `all`, as in `make test-all`, and a quarter of it elsewhere."""
    return number if COMPLETE else max(10, number // 4)


def sample(rows: Sequence[Row], step: int) -> Sequence[Row]:
    """Return all rows where `RLVR_EXAMPLES` is `all`, and one in `step` of them elsewhere."""
    return rows if COMPLETE else rows[::step]
