"""The number of random examples that a property is tried with."""

import os


def examples(number: int) -> int:
    """Return `number` where `RLVR_EXAMPLES` is `all`, as in `make test-all`, and a quarter of it elsewhere."""
    return number if os.environ.get("RLVR_EXAMPLES") == "all" else max(10, number // 4)
