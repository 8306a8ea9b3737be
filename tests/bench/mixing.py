"""Mixing of many graded prompts: seconds and memory, beside a bare scan and write of the same table by polars.

python -m tests.bench.mixing <prompts> <folder>
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import polars
import pyarrow as pa

from tasks.tables.parquet import read_table, write_batches, write_table
from tasks.tables.schemas import GRADED, MIXTURE
from tests.bench.cleaning import prompts

SOURCES = 15
"""As many as Olmo 3's data has."""


def graded(count: int) -> Iterator[pa.Table]:
    """The prompts of the benchmark of cleaning, from several sources, with pass rates."""
    for part in prompts(count):
        rows = part.num_rows
        sources = pa.array([f"source {row % SOURCES}" for row in range(rows)])
        table = part.set_column(part.schema.get_field_index("source"), GRADED.field("source"), sources)
        for name, value in (("pass_rate", 0.25), ("mean_score", 0.25), ("num_rollouts", 8), ("mean_tokens", 512.0)):
            field = GRADED.field(name)
            table = table.append_column(field, pa.array([value] * rows, field.type))
        yield table


def main(count: int, folder: Path) -> dict[str, float]:
    """Mix `count` prompts from file to file; what is made for it is neither timed nor in memory before."""
    from tasks.mixing.mix import mix
    from tasks.mixing.spec import MixtureSpec

    file = write_batches(folder / "graded.parquet", graded(count), GRADED)
    spec = MixtureSpec(heldout=0.02, temperature=2.0, size=count // 2)
    started = time.perf_counter()
    mixed = mix(read_table(file, GRADED), spec)
    write_table(folder / "mixture.parquet", mixed.train, MIXTURE)
    write_table(folder / "heldout.parquet", mixed.heldout, GRADED)
    seconds = time.perf_counter() - started
    found = {"seconds": seconds, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    del mixed
    started = time.perf_counter()
    # The same work without a choice: as many rows in another order.
    table = polars.read_parquet(file)
    table.sample(count // 2, shuffle=True, seed=1).write_parquet(folder / "bare.parquet", compression="zstd")
    return found | {"bare_seconds": time.perf_counter() - started}


if __name__ == "__main__":
    with TemporaryDirectory(dir=sys.argv[2]) as scratch:
        print(json.dumps(main(int(sys.argv[1]), Path(scratch))))
