"""Writing the logs of a view: CPU seconds and memory, beside writing the same responses as JSON Lines.

python -m tests.bench.view <responses>x<words> <folder>
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from tasks.tables.parquet import read_batches, write_batches
from tasks.tables.schemas import EVALUATION_PROMPTS, EVALUATION_ROLLOUTS, HELDOUT
from tasks.view import viewer
from tasks.view.environment import ensure_environment
from tasks.view.responses import find_responses
from tasks.view.selection import select

SAMPLES = 8
BATCH = 1_000
WORDS = 20_000
"""Number of different words, so that texts are compressed as those of a model are."""


def prompts(count: int) -> pa.Table:
    rows = [
        {
            "benchmark": HELDOUT,
            "prompt_id": f"{number:032x}",
            "domain": "math",
            "source": "made",
            "row": number,
            "messages": [{"role": "user", "content": f"What is {number} + 1?"}],
            "verifier": "math",
            "ground_truth": json.dumps(str(number + 1)),
            "metadata": "{}",
        }
        for number in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=EVALUATION_PROMPTS)


def rollouts(count: int, words: int) -> Iterator[pa.Table]:
    generator = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(generator.choices(letters, k=generator.randint(2, 9))) for _ in range(WORDS)]
    for start in range(0, count, BATCH):
        rows = [
            {
                "benchmark": HELDOUT,
                "prompt_id": f"{number // SAMPLES:032x}",
                "sample": number % SAMPLES,
                "response": " ".join(generator.choices(vocabulary, k=words)),
                "num_tokens": 2 * words,
                "finish_reason": "stop",
                "score": float(number % 2),
                "passed": number % 2 == 1,
                "rewards": [],
                "detail": "expected 3",
                "policy": "after",
                "answer": "2",
            }
            for number in range(start, min(start + BATCH, count))
        ]
        yield pa.Table.from_pylist(rows, schema=EVALUATION_ROLLOUTS)


def spent() -> float:
    """CPU seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(count: int, words: int, folder: Path) -> dict[str, float]:
    """Write `count` responses of `words` words as JSON Lines, and as logs."""
    made = ensure_environment(print)
    write_batches(folder / "evaluation_prompts.parquet", [prompts(count // SAMPLES)], EVALUATION_PROMPTS)
    table = write_batches(folder / "evaluation_rollouts.parquet", rollouts(count, words), EVALUATION_ROLLOUTS)
    started = time.process_time()
    with (folder / "rows.jsonl").open("w") as file:
        for part in read_batches(table, EVALUATION_ROLLOUTS):
            for row in part.to_pylist():
                file.write(json.dumps(row) + "\n")
    lines = time.process_time() - started
    before, wall = spent(), time.perf_counter()
    responses = find_responses(folder)
    chosen = select(responses, benchmark=HELDOUT)
    assert sum(log.count for log in chosen.logs) == count
    viewer.write_logs(made, responses, chosen.logs, folder / "logs", lambda path, number: None)
    return {
        "lines_cpu": lines,
        "logs_cpu": spent() - before,
        "logs_seconds": time.perf_counter() - wall,
        "mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "logs_mb": sum(path.stat().st_size for path in (folder / "logs").rglob("*.eval")) / 1e6,
        "lines_mb": (folder / "rows.jsonl").stat().st_size / 1e6,
    }


if __name__ == "__main__":
    given = [int(number) for number in sys.argv[1].split("x")]
    with TemporaryDirectory(dir=sys.argv[2]) as scratch:
        print(json.dumps(main(*given, Path(scratch))))
