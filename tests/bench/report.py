"""The comparison and the report of many rollouts: seconds and megabytes, beside a bare read of the same table.

Most of the report's time is for its charts, which a small run has as well: its time is stated besides.

python -m tests.bench.report <rollouts> <folder>
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.tables.parquet import build_table, read_batches, read_table, write_batches, write_table
from tasks.tables.schemas import AFTER, BEFORE, EVALUATION_ROLLOUTS, GRADED, HELDOUT, VERDICTS
from tests.reporting.synthetic_run import report_inputs

POLICIES = (BEFORE, AFTER)
SAMPLES = 4
MEAN_CHARS = 1_500
"""Mean length of a response, in characters; GSM8K's solutions by an instructed model are about as long."""
WORDS = ["we", "need", "to", "find", "the", "sum", "of", "all", "digits", "so", "that", "is", "<", "&", "\n", "once"]
DOMAINS = ("math", "code", "precise_if", "chat")


def heldout(count: int) -> pa.Table:
    """The held-out prompts, of the domains of Olmo 3's mixture."""
    rows = [
        {
            "prompt_id": f"{number:032x}",
            "domain": DOMAINS[number % len(DOMAINS)],
            "source": "made up",
            "row": number,
            "messages": [{"role": "user", "content": f"Question {number}: how many ways are there? " * 5}],
            "verifier": "math" if number % len(DOMAINS) == 0 else "chat_open",
            "ground_truth": json.dumps(str(number)),
            "metadata": "{}",
            "cluster": None,
            "pass_rate": 0.25,
            "mean_score": 0.25,
            "num_rollouts": 8,
            "mean_tokens": 400.0,
        }
        for number in range(count)
    ]
    return build_table(rows, GRADED, "heldout")


def rollouts(prompts: pa.Table, skill: float, generator: np.random.Generator) -> Iterator[pa.Table]:
    """Rollouts of one policy on the prompts, in parts; lengths have a long tail, as those of models do."""
    text = " ".join(generator.choice(WORDS, 200_000))
    for start in range(0, prompts.num_rows, 1_000):
        ids = prompts.column("prompt_id")[start : start + 1_000].to_pylist()
        count = len(ids) * SAMPLES
        lengths = generator.lognormal(np.log(MEAN_CHARS) - 0.5, 1.0, count).astype(int)
        offsets = generator.integers(0, len(text) // 2, count)
        passed = generator.random(count) < skill
        rewards = [{"name": "correct", "value": 1.0}, {"name": "format", "value": 0.5}]
        columns = {
            "benchmark": [HELDOUT] * count,
            "prompt_id": [one for one in ids for _ in range(SAMPLES)],
            "sample": list(range(SAMPLES)) * len(ids),
            "response": [text[at : at + length] for at, length in zip(offsets, lengths, strict=True)],
            "num_tokens": lengths // 4,
            "finish_reason": ["stop"] * count,
            "score": passed.astype(float),
            "passed": passed,
            "rewards": [rewards] * count,
            "policy": ["digest"] * count,
            "answer": ["42"] * count,
            "detail": ["read 42, expected 43"] * count,
        }
        absent = [None] * count
        yield pa.table(
            [pa.array(columns.get(one.name, absent), one.type) for one in EVALUATION_ROLLOUTS], EVALUATION_ROLLOUTS
        )


@contextmanager
def timed(found: dict[str, float], name: str) -> Iterator[None]:
    """Note the wall and the CPU seconds of the block."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    found[f"{name}_seconds"], found[f"{name}_cpu"] = time.perf_counter() - wall, time.process_time() - cpu


def main(count: int, folder: Path) -> dict[str, float]:
    """Compare two policies with `count` rollouts in all, from file to tables and report."""
    from tasks.evaluation.comparison import compare
    from tasks.reporting.heldout_rollouts import select_heldout_rollouts
    from tasks.reporting.page import render

    generator = np.random.default_rng(7)
    asked = heldout(count // len(POLICIES) // SAMPLES)
    prompts = write_table(folder / "heldout.parquet", asked, GRADED)
    files = {
        policy: write_batches(folder / f"{policy}.parquet", rollouts(asked, skill, generator), EVALUATION_ROLLOUTS)
        for policy, skill in zip(POLICIES, (0.3, 0.4), strict=True)
    }
    everything = write_batches(
        folder / "evaluation_rollouts.parquet",
        (
            part.set_column(part.schema.get_field_index("policy"), "policy", pa.array([policy] * part.num_rows))
            for policy, file in files.items()
            for part in read_batches(file, EVALUATION_ROLLOUTS)
        ),
        EVALUATION_ROLLOUTS,
    )
    others = report_inputs()
    found: dict[str, float] = {}
    render(others)  # loads Matplotlib and fonts
    with timed(found, "small"):
        render(others)
    with timed(found, "bare"):
        for file in (prompts, everything):
            pq.read_table(file)
    with timed(found, "compare"):
        tables = {HELDOUT: read_table(prompts, GRADED)}
        answered = {
            policy: pa.concat_tables([VERDICTS.empty_table(), *read_batches(file, VERDICTS)])
            for policy, file in files.items()
        }
        evaluation = compare(answered, tables, BEFORE)
    with timed(found, "render"):
        before, after = select_heldout_rollouts(read_batches(everything, EVALUATION_ROLLOUTS))
        inputs = replace(others, heldout=tables[HELDOUT], evaluation=evaluation.table, before=before, after=after)
        report = render(inputs)
    megabytes = {"report_mb": len(report.encode()) / 1e6}
    return found | megabytes | {"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    with TemporaryDirectory(dir=sys.argv[2]) as scratch:
        print(json.dumps(main(int(sys.argv[1]), Path(scratch))))
