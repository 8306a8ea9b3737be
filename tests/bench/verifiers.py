"""The verifiers: judgements/s on one core, what the pool adds, and how hanging responses slow the others.

Programs and responses are generated, so that none is judged twice. Memory is what a process shares with no other where
it is a worker's, and the peak of the process where the verifier runs alone.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tasks.verifiers import Call, Score, VerifierPool, VerifiersConfig
from tasks.verifiers.code.sandbox import Isolation, SandboxError
from tasks.verifiers.processes import RESERVE
from tests.bench import verifiers_instructions, verifiers_mathematics

PROGRAMS = 120
CHEAP_CALLS = 4000
GOOD, HANGING = 950, 50
LIGHT, TYPICAL = (3, 0), (16, 60_000)
"""Assertions per program, and turns of a loop in each call: next to nothing, and a good part of the 20 that AceCoder
asks for (arXiv:2502.01718), with a millisecond or so in each. Among light ones, each of which takes a core some 6 ms,
any program is dear: its start alone takes 14."""
ROUNDS = 20
"""Runs with and without hangs; a machine that others use too changes its speed by a tenth from one to the next."""
NO_COMMA = {"instruction_ids": ["punctuation:no_comma"], "kwargs": [{}]}
TOWER = r"\boxed{10^{10^{10^{10}}}}"
EXPANSION = r"\boxed{(a+b+c+d+e+f+g)^{300}}"
ROOTS = r"\boxed{x^{20}+x^{7}+3x+1=0}"
"""Three that hang: two look like it, as text and once they are read, and the third is found out by its time."""
ISOLATIONS: tuple[Isolation, ...] = ("namespaces", "landlock")


def program(number: int, hangs: bool = False, load: tuple[int, int] = LIGHT) -> Call:
    """A function with some assertions, unlike that of any other number."""
    assertions, turns = load
    work = f"for _ in range({turns}): pass"
    body = "while True: pass" if hangs else f"return sorted(x * {number} % 7 for x in range(n))"
    values = {n: sorted(x * number % 7 for x in range(n)) for n in range(3, 3 + assertions)}
    tests = [f"assert f({n}) == {value}" for n, value in values.items()]
    return Call("code", f"```python\ndef f(n):\n    {work}\n    {body}  # {number}\n```", {"tests": tests})


def code() -> dict[str, float]:
    """Programs/s in one process and through a pool of one worker, by isolation, and the milliseconds of each stage."""
    figures: dict[str, float] = {}
    for isolation in ISOLATIONS:
        config = VerifiersConfig(cache_entries=0, code={"isolation": isolation})
        try:
            figures |= {f"{isolation}/{name}": value for name, value in (_alone(config) | _stages(isolation)).items()}
        except SandboxError as absent:
            print(f"{isolation}: {absent}", file=sys.stderr)
            continue
        calls = [program(number) for number in range(1, PROGRAMS + 1)]
        figures |= {f"{isolation}/pool_{name}": value for name, value in _through_pool(config, calls).items()}
    return figures


def _alone(config: VerifiersConfig) -> dict[str, float]:
    from tasks.verifiers import code as room

    room.configure(config.code)
    room._workshop.sandbox()
    taken = []
    for number in range(1, PROGRAMS + 1):
        call = program(number)
        taken.append(_seconds(lambda: room.judge(call.response, call.ground_truth)))  # noqa: B023 - called at once
    room.configure(config.code)
    return _summary(taken)


def _stages(isolation: Isolation) -> dict[str, float]:
    """Milliseconds: two forks that are locked up, loading with the tests, and the end of both processes."""
    from tasks.verifiers.code import running
    from tasks.verifiers.code.config import CodeConfig
    from tasks.verifiers.code.sandbox import Sandbox

    spent = {"fork": 0.0, "end": 0.0}

    class Timed(Sandbox):
        def fork(self, part, limits, descriptors):
            return _add(spent, "fork", lambda: super(Timed, self).fork(part, limits, descriptors))

        def end(self, process):
            return _add(spent, "end", lambda: super(Timed, self).end(process))

    config = CodeConfig(isolation=isolation)
    with Timed(isolation, None, config.disk_mib) as sandbox:
        spent.update(fork=0.0, end=0.0)
        loading = total = 0.0
        for number in range(1, PROGRAMS + 1):
            text = program(number).response.split("\n", 1)[1].removesuffix("```")
            tests = program(number).ground_truth["tests"]
            before = spent["fork"] + spent["end"]
            loading += _seconds(lambda: running.run_assertions(sandbox, text, "", ["pass"], config))  # noqa: B023
            loading -= spent["fork"] + spent["end"] - before
            total += _seconds(lambda: running.run_assertions(sandbox, text, "", tests, config))  # noqa: B023
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
    """How much longer 950 responses take where 50 that hang are among them, rounds in turn, light and typical ones.

    The ratio is the geometric mean over the rounds, the error two standard errors of it.
    """
    figures = {}
    for name, load in (("typical", TYPICAL), ("light", LIGHT)):
        with_them, without = [], []
        for seed in range(ROUNDS):
            for share, taken in ((0, without), (HANGING, with_them))[:: 1 if seed % 2 else -1]:
                taken.append(_until_good_are_done(share, seed, load))
        logs = [math.log(ours / theirs) for ours, theirs in zip(with_them, without, strict=True)]
        ratio = math.exp(statistics.mean(logs))
        figures |= {
            f"{name}/seconds": statistics.median(with_them),
            f"{name}/alone_seconds": statistics.median(without),
            f"{name}/ratio": ratio,
            f"{name}/error": ratio * 2 * statistics.stdev(logs) / math.sqrt(ROUNDS),
        }
    return figures


def _until_good_are_done(hanging_ones: int, seed: int, load: tuple[int, int]) -> float:
    pairs = verifiers_mathematics.pairs(seed)
    texts = verifiers_instructions.responses(verifiers_instructions.ifbench())
    makers: tuple[Callable[[int], Call], ...] = (
        lambda i: Call("math", *pairs[i % len(pairs)]),
        lambda i: program(i + 1, load=load),
        lambda i: Call("precise_if", f"{i} {texts[i % len(texts)]}", NO_COMMA),
    )
    calls = [(True, makers[i % 3](i)) for i in range(GOOD)]
    hang: tuple[Callable[[int], Call], ...] = (
        lambda i: Call("math", f"{i} {TOWER}", "7"),
        lambda i: program(i, True),
        lambda i: Call("math", f"{i} {EXPANSION}", f"x + {i}"),
        lambda i: program(i, True),
        lambda i: Call("math", f"{i} {ROOTS}", f"x = {i}"),
        lambda i: program(i, True),
    )
    calls += [(False, hang[i % len(hang)](i)) for i in range(hanging_ones)]
    random.Random(seed).shuffle(calls)  # noqa: S311 - not cryptography
    with VerifierPool(os.cpu_count() or 1, VerifiersConfig(cache_entries=0), max_pending=len(calls)) as pool:
        pool.wait_ready()
        pool.score_many(makers[i % 3](10_000 + i) for i in range(60))
        while sum(each.ready for each in pool._computing._workers) < pool.workers + RESERVE:  # as after a quiet moment
            time.sleep(0.1)
        done = threading.Semaphore(0)
        began = time.perf_counter()
        for good, call in calls:
            future = pool.submit(*call)
            if good:
                future.add_done_callback(lambda _: done.release())
        for _ in range(GOOD):
            done.acquire()
        return time.perf_counter() - began


def _through_pool(config: VerifiersConfig, calls: Sequence[Call]) -> dict[str, float]:
    """Calls/s of a pool of one worker, latency of a call that finds it idle, and the worker's own memory."""
    with VerifierPool(1, config) as pool:
        pool.wait_ready()
        pool.submit(*calls[0]).result()
        began = time.perf_counter()
        _all_judged(pool.score_many(calls))
        per_second = len(calls) / (time.perf_counter() - began)
        futures: list[Future[Score]] = []
        latencies = [_seconds(lambda: futures.append(pool.submit(*call)) or futures[-1].result()) for call in calls]  # noqa: B023
        pids = [each.process.pid for each in pool._computing._workers]
        return {**_summary(latencies), "per_second": per_second, "rss_mib": max(map(_private_mib, pids))}


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
