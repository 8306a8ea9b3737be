"""The verifiers: judgements/s on one core, what the pool adds, and how hanging responses slow the others.

Programs and responses are generated, so that none is judged twice. Memory is what a process shares with no other where
it is a worker's, and the peak of the process where the verifier runs alone.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tasks.verifiers import Call, Score, VerifierPool, VerifiersConfig
from tasks.verifiers.code import open_sandbox
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.prepared import prepare
from tasks.verifiers.code.running import run_assertions
from tasks.verifiers.code.sandbox import Isolation, Sandbox, SandboxError
from tasks.verifiers.code.timing import Clock
from tests.bench import verifiers_instructions, verifiers_mathematics
from tests.verifiers.processes import HANG

PROGRAMS = 120
CHEAP_CALLS = 4000
GOOD, SLOW_ONES, HANGING = 940, 10, 50
LIGHT, TYPICAL, SLOW = (3, 0), (16, 60_000), (3, 2_000_000)
"""Assertions per program, and turns of a loop in each call: next to nothing, a good part of the 20 that AceCoder asks
for (arXiv:2502.01718) with a millisecond or so in each, and a right program that takes a tenth of a second."""
SEEDS = 5
HASTY = VerifiersConfig(time_limit_seconds=1.0, cache_entries=0, code={"test_seconds": 0.5, "total_seconds": 1.0})
"""Limits by which 50 hanging responses take 50 CPU seconds, not 300."""
NO_COMMA = {"instruction_ids": ["punctuation:no_comma"], "kwargs": [{}]}
ROOTS = r"\boxed{x^{20}+x^{7}+3x+1=0}"
ISOLATIONS: tuple[Isolation, ...] = ("namespaces", "landlock")


_NUMBERS = range(1, PROGRAMS + 1)


def program(number: int, hangs: bool = False, load: tuple[int, int] = LIGHT) -> Call:
    """A function with some assertions, unlike that of any other number."""
    assertions, turns = load
    work = f"for _ in range({turns}): pass"
    body = "while True: pass" if hangs else f"return sorted(x * {number} % 7 for x in range(n))"
    values = {n: sorted(x * number % 7 for x in range(n)) for n in range(3, 3 + assertions)}
    tests = [f"assert f({n}) == {value}" for n, value in values.items()]
    return Call("code", f"```python\ndef f(n):\n    {work}\n    {body}  # {number}\n```", {"tests": tests})


def code() -> dict[str, float]:
    """Programs/s in one process and through a pool of one worker, by isolation, and the milliseconds of each stage.

    Beside them are those of new, unconfined interpreters, each of which runs a program with its tests.
    """
    figures: dict[str, float] = {"python/per_second": _unconfined()}
    for isolation in ISOLATIONS:
        config = VerifiersConfig(cache_entries=0, code={"isolation": isolation})
        try:
            found = _alone(config.code) | {"grouped_per_second": _grouped(config.code)} | _stages(isolation)
            figures |= {f"{isolation}/{name}": value for name, value in found.items()}
        except SandboxError as absent:
            print(f"{isolation}: {absent}", file=sys.stderr)
            continue
        calls = [program(number) for number in range(1, PROGRAMS + 1)]
        figures |= {f"{isolation}/pool_{name}": value for name, value in _through_pool(config, calls).items()}
    return figures


def _alone(config: CodeConfig) -> dict[str, float]:
    """Each program has tests of its own, which are prepared for it."""
    parts = ((number, *_parts(number)) for number in _NUMBERS)
    return _summary(_run(config, [(text, [f"{test}, {number}" for test in tests]) for number, text, tests in parts]))


def _grouped(config: CodeConfig) -> float:
    """Programs/s if eight programs in turn have the same tests, as the samples of a group have."""
    taken = _run(config, [_parts(number + 7 * sample) for number in range(1, 8) for sample in range(8)])
    return len(taken) / sum(taken)


def _run(config: CodeConfig, programs: Sequence[tuple[str, list[str]]]) -> list[float]:
    """Seconds of each program with its tests."""

    def run(text: str, tests: list[str]) -> None:
        clock = Clock(config.test_seconds, config.total_seconds)
        assert all(verdict.passed for verdict in run_assertions(sandbox, text, prepare("", "", tests), config, clock))

    with open_sandbox(config) as sandbox:
        return [_seconds(partial(run, *each)) for each in programs]


def _unconfined() -> float:
    """Programs/s of interpreters without a sandbox, each started for one program."""
    command = [sys.executable, "-I", "-c"]
    texts = ["\n".join([text, *tests]) for text, tests in map(_parts, _NUMBERS)]
    taken = [_seconds(lambda: subprocess.run([*command, text], check=True)) for text in texts]  # noqa: B023
    return len(taken) / sum(taken)


def _parts(number: int) -> tuple[str, list[str]]:
    call = program(number)
    return call.response.split("\n", 1)[1].removesuffix("```"), call.ground_truth["tests"]


def _stages(isolation: Isolation) -> dict[str, float]:
    """Milliseconds: two forks that are locked up, loading with the tests, and the end of both processes."""
    spent = {"fork": 0.0, "end": 0.0}

    class Timed(Sandbox):
        def fork(self, part, limits, descriptors):
            return _add(spent, "fork", lambda: super(Timed, self).fork(part, limits, descriptors))

        def end(self, process):
            return _add(spent, "end", lambda: super(Timed, self).end(process))

    config = CodeConfig(isolation=isolation)
    nothing = prepare("", "", ["pass"])
    with Timed(isolation, None, config.disk_mib) as sandbox:
        spent.update(fork=0.0, end=0.0)
        loading = total = 0.0
        for number in range(1, PROGRAMS + 1):
            text, tests = _parts(number)
            before = spent["fork"] + spent["end"]
            loading += _seconds(lambda: run_assertions(sandbox, text, nothing, config, Clock(2.0, 4.0)))  # noqa: B023
            loading -= spent["fork"] + spent["end"] - before
            total += _seconds(lambda: run_assertions(sandbox, text, prepare("", "", tests), config, Clock(2.0, 4.0)))  # noqa: B023
    fork, end = (1e3 * spent[name] / (2 * PROGRAMS) for name in ("fork", "end"))
    load = 1e3 * loading / PROGRAMS
    tests_ms = 1e3 * total / PROGRAMS - fork - end - load
    return {"fork_ms": fork, "load_ms": load, "tests_ms": tests_ms, "end_ms": end}


def pool() -> dict[str, float]:
    """What the pool adds: calls/s of a check that costs next to nothing, alone and through one worker."""
    from tasks.verifiers import instructions

    calls = [Call("precise_if", f"Response {number} is fine.", NO_COMMA) for number in range(CHEAP_CALLS)]
    instructions.warm_up()
    alone = _summary([_seconds(lambda: instructions.judge(call.response, call.ground_truth, None)) for call in calls])  # noqa: B023
    through = _through_pool(VerifiersConfig(cache_entries=0), calls)
    return {f"alone_{name}": value for name, value in alone.items()} | through


def hanging() -> dict[str, float]:
    """What 50 hanging responses among 1,000 change: verdicts beside a busy machine, and the rate of the good ones.

    The verdicts of each seed are compared with those of the idle machine. The rate is that of the good calls, slow ones
    aside, until the last of them is done, with the hanging ones over without them; medians over the seeds.
    """
    differing = errors = 0
    rates: dict[str, list[float]] = {"idle": [], "loaded": []}
    for seed in range(SEEDS):
        idle, idle_seconds = _judged(seed, HANGING)
        rates["idle"].append(_judged(seed, 0)[1] / idle_seconds)
        with _all_cores_busy():
            loaded, loaded_seconds = _judged(seed, HANGING)
            rates["loaded"].append(_judged(seed, 0)[1] / loaded_seconds)
        differing += sum(ours != theirs for ours, theirs in zip(idle, loaded, strict=True))
        errors += sum(error is not None for _, error in (*idle, *loaded))
    found = {f"{name}_rate": statistics.median(values) for name, values in rates.items()}
    return {"differing": differing, "errors": errors, **found}


@contextmanager
def _all_cores_busy() -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def _judged(seed: int, hanging_ones: int) -> tuple[list[tuple[float, str | None]], float]:
    """Value and error of each call, and the seconds until the last good one that is not slow was done."""
    pairs = verifiers_mathematics.pairs(seed)
    texts = verifiers_instructions.responses(verifiers_instructions.ifbench())
    makers: tuple[Callable[[int], Call], ...] = (
        lambda i: Call("math", *pairs[i % len(pairs)]),
        lambda i: program(i + 1, load=TYPICAL),
        lambda i: Call("precise_if", f"{i} {texts[i % len(texts)]}", NO_COMMA),
    )
    hang: tuple[Callable[[int], Call], ...] = (
        lambda i: Call("math", HANG.replace("x^7", f"x^{{{i + 7}}}"), "7"),
        lambda i: program(i, True),
        lambda i: Call("math", f"{i} {ROOTS}", f"x = {i}"),
        lambda i: program(i, True),
    )
    calls = [(True, makers[i % 3](i)) for i in range(GOOD)]
    calls += [(False, program(20_000 + i, load=SLOW)) for i in range(SLOW_ONES)]
    calls += [(False, hang[i % len(hang)](i)) for i in range(hanging_ones)]
    random.Random(seed).shuffle(calls)
    with VerifierPool(os.cpu_count() or 1, HASTY, max_pending=len(calls)) as pool:
        pool.score_many(makers[i % 3](10_000 + i) for i in range(60))
        done = threading.Semaphore(0)
        began = time.perf_counter()
        futures = [pool.submit(*call) for _, call in calls]
        for (good, _), future in zip(calls, futures, strict=True):
            if good:
                future.add_done_callback(lambda _: done.release())
        for _ in range(GOOD):
            done.acquire()
        seconds = time.perf_counter() - began
        scores = [future.result() for future in futures]
    return [(score.value, score.error) for score in scores], seconds


def _through_pool(config: VerifiersConfig, calls: Sequence[Call]) -> dict[str, float]:
    """Calls/s of a pool of one worker, latency of a call that finds it idle, and the worker's own memory."""
    with VerifierPool(1, config) as pool:
        pool.submit(*calls[0]).result()
        began = time.perf_counter()
        _all_judged(pool.score_many(calls))
        per_second = len(calls) / (time.perf_counter() - began)
        futures: list[Future[Score]] = []
        latencies = [_seconds(lambda: futures.append(pool.submit(*call)) or futures[-1].result()) for call in calls]  # noqa: B023
        return {**_summary(latencies), "per_second": per_second, "rss_mib": max(map(_private_mib, _below("self")))}


def _all_judged(scores: Iterable[Score]) -> None:
    for score in scores:
        assert score.passed, score


def _summary(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {
        "per_second": len(seconds) / sum(seconds),
        "p50_ms": 1e3 * cuts[49],
        "p99_ms": 1e3 * cuts[98],
        "rss_mib": _private_mib("self"),
    }


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _add(spent: dict[str, float], name: str, call: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    try:
        return call()
    finally:
        spent[name] += time.perf_counter() - began


def _below(pid: int | str) -> list[int]:
    """All processes below one."""
    children = [
        int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
    ]
    return children + [below for child in children for below in _below(child)]


def _private_mib(pid: int | str) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


WHAT: dict[str, Callable[[], dict[str, float]]] = {
    "mathematics": verifiers_mathematics.measure,
    "instructions": verifiers_instructions.measure,
    "code": code,
    "pool": pool,
    "hanging": hanging,
}

if __name__ == "__main__":
    print(json.dumps(WHAT[sys.argv[1]]()))
