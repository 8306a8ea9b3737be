"""Judgements/s of `math` against math-verify's own calls on the same pairs, in one process on one core.

Both sides judge whole responses: ours by `mathematics.judge`, the other by `parse` and `verify` with time limits off.
The pairs are word problems worked out at length and LaTeX answers, right and wrong in turn. The sides take turns in
small blocks, so that a machine that slows down slows both.
"""

from __future__ import annotations

import json
import logging
import random
import resource
import statistics
import time
from collections.abc import Callable

WORD_PROBLEMS = 300
BLOCK = 50
ROUNDS = 3

Pair = tuple[str, str]


def pairs(seed: int) -> list[Pair]:
    """Responses and references, no two alike: nothing that either side remembers helps it."""
    generator = random.Random(seed)
    mixed = _word_problems(seed) + _latex(generator)
    generator.shuffle(mixed)
    return mixed


def _word_problems(seed: int) -> list[Pair]:
    """Solutions in GSM8K's form, a line per step and the answer after `####`."""
    import reasoning_gym

    generator = random.Random(seed)
    made: list[Pair] = []
    for item in reasoning_gym.create_dataset("gsm_symbolic", size=WORD_PROBLEMS, seed=seed):
        answer = str(item["answer"])
        steps = [f"Step {n}: {n} * {generator.randint(2, 99)} = <<{n}*{n}={n * n}>>{n * n}." for n in range(1, 6)]
        wrong = len(made) % 2
        made.append(("\n".join([item["question"], *steps, f"#### {answer}{'1' * wrong}"]), answer))
    return made


def _latex(generator: random.Random) -> list[Pair]:
    """Boxed answers of every kind that MATH has."""
    made: list[Pair] = []
    for number in range(200):
        a, b, c = (generator.randint(2, 99) for _ in range(3))
        d = number + 100
        made += [
            (rf"Adding up, we get \[\boxed{{\frac{{{a * d}}}{{{b * d}}}}}\]", rf"\frac{{{a}}}{{{b}}}"),
            (rf"Thus $x = {a}\sqrt{{{d}}}$, so \boxed{{{a}\sqrt{{{d}}}}}.", rf"\sqrt{{{a * a * d}}}"),
            (rf"The roots are \boxed{{{a}, {b}, {d}}}.", f"{d}, {a}, {b}"),
            (rf"Hence the point is $\boxed{{\left({a}, -{b}, {d}\right)}}$.", f"({a}, {b}, {d})"),
            (rf"It is \boxed{{{a}x^2 + {b}x + {d}}}.", f"{d} + {b}x + {a}x^2"),
            (rf"So \boxed{{x \in [{a}, {a + d})}}", f"[{a}, {a + d})"),
            (rf"In all \boxed{{{a},{d}\text{{ cm}}}}", f"{a}{d}"),
            (rf"That is $\boxed{{{a}.{d}}}$ or so.", f"{a}.{d + 1}"),
            (rf"The sum is \boxed{{{a} + {d}i}}", f"{d}i + {a + c % 2}"),
            (rf"The line is \boxed{{y = {a}x + {d}}}", f"y = {a}x + {d}"),
        ]
    return generator.sample(made, WORD_PROBLEMS)


def ours(pair: Pair) -> None:
    """One judgement of the verifier."""
    from tasks.verifiers import mathematics

    mathematics.judge(*pair)


def bare(pair: Pair) -> None:
    """The same pair by math-verify alone."""
    import math_verify

    gold = math_verify.parse(f"${pair[1]}$", parsing_timeout=None)
    math_verify.verify(gold, math_verify.parse(pair[0], parsing_timeout=None), timeout_seconds=None)


def measure() -> dict[str, float]:
    """Calls per second of both sides; ours also as latency in milliseconds, and the process's memory in MiB.

    `rss_mib` is the peak after our side's first block: what a worker holds, without the other side's caches.
    """
    from tasks.verifiers import mathematics

    logging.disable(logging.ERROR)
    mathematics.warm_up()
    warm = pairs(seed=0)[:BLOCK]
    _timed(ours, warm)
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    _timed(bare, warm)
    spent: dict[str, list[float]] = {"ours": [], "bare": []}
    for seed in range(1, ROUNDS + 1):
        for number, block in enumerate(_blocks(pairs(seed))):
            turns = [("ours", ours), ("bare", bare)]
            for name, call in turns if number % 2 else reversed(turns):
                spent[name] += _timed(call, block)
    percentiles = statistics.quantiles(spent["ours"], n=100)
    return {
        "ours_per_second": len(spent["ours"]) / sum(spent["ours"]),
        "bare_per_second": len(spent["bare"]) / sum(spent["bare"]),
        "p50_ms": 1e3 * percentiles[49],
        "p99_ms": 1e3 * percentiles[98],
        "rss_mib": rss_mib,
    }


def _blocks(all_pairs: list[Pair]) -> list[list[Pair]]:
    return [all_pairs[start : start + BLOCK] for start in range(0, len(all_pairs), BLOCK)]


def _timed(call: Callable[[Pair], None], block: list[Pair]) -> list[float]:
    """Seconds of each call of a block."""
    seconds = []
    for pair in block:
        started = time.perf_counter()
        call(pair)
        seconds.append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    print(json.dumps(measure()))
