"""Cleaning of many prompts: seconds and memory of the two passes, over prompts like word problems.

    python -m tests.bench.cleaning <prompts> <folder>

Of the prompts 5% are the same as an earlier one, and 5% differ from an earlier one in one word.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from string import ascii_lowercase
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from tasks.tables.parquet import table_from_rows, write_batches
from tasks.tables.schemas import PROMPTS, canonical_json, prompt_id

WORDS = 60
"""Of a prompt: GSM8K's have 46 in the mean."""
VOCABULARY = 5000
BATCH = 10_000
SAME, NEAR = 0.05, 0.05


def prompts(count: int) -> Iterator[pa.Table]:
    """Made-up prompts, in tables of `BATCH`."""
    random = np.random.default_rng(5)
    known = np.array(["".join(letters) for letters in product(ascii_lowercase, repeat=3)][:VOCABULARY])
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        words = random.integers(0, VOCABULARY, (size, WORDS))
        fates = random.random(size)
        for row in np.flatnonzero(fates < SAME + NEAR):
            words[row] = words[random.integers(0, max(row, 1))]
            if fates[row] >= SAME:
                words[row, random.integers(0, WORDS)] = random.integers(0, VOCABULARY)
        texts = [" ".join(row) for row in known[words]]
        yield table_from_rows(
            [
                {
                    "prompt_id": prompt_id([{"role": "user", "content": text}], "math", str(start + row)),
                    "domain": "math",
                    "source": "made",
                    "messages": [{"role": "user", "content": text}],
                    "verifier": "math",
                    "ground_truth": canonical_json(str(start + row)),
                    "metadata": "{}",
                    "cluster": None,
                    "row": start + row,
                }
                for row, text in enumerate(texts)
            ],
            PROMPTS,
            "made prompts",
        )


def main(count: int, folder: Path) -> dict[str, float]:
    """Clean `count` prompts from file to file; what is made for it is neither timed nor in memory."""
    from tasks.cleaning.frames import FRAMED, frames_of
    from tasks.cleaning.merging import Merger
    from tasks.cleaning.screening import screen
    from tasks.cleaning.spec import CleaningSpec
    from tasks.tables.parquet import read_batches
    from tasks.tables.schemas import SET_ASIDE

    file = write_batches(folder / "made.parquet", prompts(count), PROMPTS)
    questions = next(prompts(1000))
    spec = CleaningSpec().screening(evaluated=True)
    assert spec is not None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def written(parts: Iterator[tuple[pa.Table, pa.Table]], name: str) -> tuple[Path, int]:
        aside: list[pa.Table] = []

        def staying() -> Iterator[pa.Table]:
            for kept, gone in parts:
                aside.append(gone)
                yield kept

        path = write_batches(folder / name, staying(), PROMPTS)
        return path, sum(table.num_rows for table in [SET_ASIDE.empty_table(), *aside])

    started = time.perf_counter()
    merged, duplicates = written(Merger([file], ["made"], CleaningSpec().duplication).parts(), "merged.parquet")
    merging = time.perf_counter() - started
    started = time.perf_counter()
    frames = frames_of(chain(read_batches(merged, FRAMED), [questions]))
    _, contaminated = written(screen(read_batches(merged, PROMPTS), questions, spec, frames), "screened.parquet")
    return {
        "merging_seconds": merging,
        "screening_seconds": time.perf_counter() - started,
        "duplicates": duplicates,
        "contaminated": contaminated,
        "mib_before": before / 1024,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    with TemporaryDirectory(dir=sys.argv[2]) as scratch:
        print(json.dumps(main(int(sys.argv[1]), Path(scratch))))
