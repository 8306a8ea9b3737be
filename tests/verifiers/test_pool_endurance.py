"""What 100,000 calls leave behind: nothing. And each of them is judged once.

The suite drives a few thousand; `RLVR_ENDURANCE_CALLS=100000` asks for all. Every 1,000th call hangs, and after every
2,000th the test kills a worker.
"""

import asyncio
import gc
import os
import signal
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tasks.verifiers import Call, Score, VerifierPool, VerifiersConfig
from tasks.verifiers.jobs import COMPUTES, Job
from tasks.verifiers.pool import _Together
from tasks.verifiers.processes import RESERVE, SLOW_PLACES
from tasks.verifiers.weighted import Part

pytestmark = pytest.mark.long

CALLS = int(os.environ.get("RLVR_ENDURANCE_CALLS", "6000"))
NO_COMMA = {"instruction_ids": ["punctuation:no_comma"], "kwargs": [{}]}
TOWER = r"\boxed{10^{10^{10^{10}}}}"
GUARD_S = 60.0
SHORT = VerifiersConfig(time_limit_seconds=1.2, code={"test_seconds": 0.5, "total_seconds": 1}, cache_entries=200)


def private_mib(pid):
    """Memory that a process shares with no other: a worker shares its imports with the forkserver."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_", "Swap:"))) / 1024


def census(pool):
    """What the pool holds now: descriptors, processes, and memory of this process and of its largest worker."""
    gc.collect()
    processes = pool._computing
    pids = [each.process.pid for each in processes._workers]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "processes": len(pids) + len(processes._dying),
        "parent_mib": private_mib("self"),
        "worker_mib": max(private_mib(pid) for pid in pids),
    }


def stream(start, count):
    for i in range(start, start + count):
        if i % 1000 == 500:
            yield Call("math", f"{i} {TOWER}", "7")
        elif i % 10 == 0:
            yield Call("math", rf"so \boxed{{\frac{{{i}}}{{4}}}}", f"{i}/4")
        else:
            yield Call("precise_if", f"Response {i} is fine.", NO_COMMA)


def wait_until(condition):
    deadline = time.monotonic() + GUARD_S
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.02)


def settled(pool):
    """As many idle workers as there should be, the reserve among them, and none that is still ending."""
    processes = pool._computing
    workers = list(processes._workers)
    return len(workers) == pool.workers + RESERVE and all(each.ready for each in workers) and not processes._dying


def drive(pool, start, count):
    """Judge `count` calls, a worker killed for every 2,000; the scores that are not passes, so as to hold few."""
    unpassed = []
    for chunk in range(start, start + count, 2000):
        scores = pool.score_many(stream(chunk, min(2000, start + count - chunk)))
        unpassed += [score for score in scores if not score.passed]
        died = pool._computing.counters.died
        os.kill(pool._computing._workers[0].process.pid, signal.SIGKILL)
        assert pool.submit("math", f"{chunk}", f"{chunk}").result(GUARD_S).passed
        wait_until(lambda: pool._computing.counters.died > died)  # noqa: B023 - called at once
    wait_until(lambda: settled(pool))
    return unpassed


def test_nothing_grows_over_many_calls():
    with VerifierPool(2, SHORT, max_pending=64) as pool:
        pool.wait_ready()
        warm = CALLS // 10
        drive(pool, 0, warm)
        before = census(pool)
        unpassed = drive(pool, warm, CALLS - warm)
        after = census(pool)
        figures = pool.figures()
    print(f"{CALLS} calls: before {before}, after {after}, {figures}")
    assert {score.detail for score in unpassed} <= {"time limit of 1.2 s"}
    assert not any(score.error for score in unpassed)
    assert figures["workers/killed"] >= CALLS // 1000
    assert after["descriptors"] <= before["descriptors"] + 2
    assert after["threads"] == before["threads"]
    assert after["processes"] == before["processes"] == 2 + RESERVE
    assert after["parent_mib"] <= before["parent_mib"] + 20
    assert after["worker_mib"] <= before["worker_mib"] + 60


def held_after_pools(count):
    """Descriptors and threads of this process after each of `count` pools was used and closed."""
    held = []
    for _ in range(count):
        with VerifierPool(1, SHORT) as pool:
            pool.submit("math", TOWER, "7")
            assert pool.submit("math", "7", "7").result(GUARD_S).passed
        gc.collect()
        held.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
    return held


def test_pools_that_come_and_go_leave_nothing():
    # in a process of its own: what earlier tests left in this one may come and go meanwhile
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        first, *later = process.submit(held_after_pools, 4).result()
    assert later == [first] * 3


def test_the_same_call_is_judged_once_however_often_it_is_made():
    async def ask(pool, count):
        return await asyncio.gather(*(pool.score("math", "so 7", "7") for _ in range(count)))

    with VerifierPool(2, SHORT, max_pending=300) as pool:
        futures = [pool.submit("math", "it is 8", "8") for _ in range(100)]
        assert {future.result(GUARD_S).value for future in futures} == {1.0}
        assert {score.value for score in asyncio.run(ask(pool, 100))} == {1.0}
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: pool.submit("math", "9", "9").result(GUARD_S), range(100)))
        stats = pool.stats()["math"]
    assert (stats.calls, stats.repeated) == (3, 297)


def test_what_happened_to_the_processes_is_told_where_nothing_did_too():
    with VerifierPool(1, SHORT) as pool:
        assert pool.submit(*program(1, "return n")).result(GUARD_S).passed
        figures = pool.figures()
    counts = {name.removeprefix("workers/"): value for name, value in figures.items() if name.startswith("workers/")}
    assert 2 <= counts.pop("started") <= 2 + RESERVE
    assert counts == {"died": 0, "killed": 0, "retries": 0, "put_back": 0}


def test_an_error_is_not_remembered():
    with VerifierPool(1, SHORT) as pool:
        errors = [pool.submit("math", "7", []).result(GUARD_S).error for _ in range(3)]
        stats = pool.stats()["math"]
    assert all("malformed ground truth" in error for error in errors)
    assert (stats.calls, stats.repeated, stats.errors) == (3, 0, 3)


def test_no_more_scores_are_remembered_than_asked_for_and_the_oldest_go_first():
    with VerifierPool(1, SHORT) as pool:
        pool.score_many(Call("precise_if", f"Response {i}.", NO_COMMA) for i in range(250))
        assert len(pool._scores) == SHORT.cache_entries
        pool.submit("precise_if", "Response 249.", NO_COMMA).result(GUARD_S)
        pool.submit("precise_if", "Response 0.", NO_COMMA).result(GUARD_S)
        assert pool.stats()["precise_if"].repeated == 1


@pytest.mark.parametrize(
    "messages",
    [[{"role": "user"}], [{}], ["user"], 7, [{"role": "user", "content": "\ud800"}], [{"role": object()}]],
    ids=["no content", "empty", "no object", "no list", "no unicode", "no JSON"],
)
def test_messages_of_the_wrong_shape_cost_no_place(messages):
    with VerifierPool(1, SHORT, max_pending=1) as pool:
        for i in range(3):
            assert pool.submit("math", f"{i}", f"{i}", messages).result(GUARD_S).passed


@pytest.mark.parametrize("weight", [1e308, 10**400], ids=["sum", "integer"])
def test_weights_that_no_float_holds_are_an_error_and_cost_no_place(weight):
    part = {"verifier": "math", "weight": weight, "ground_truth": "7"}
    with VerifierPool(1, SHORT, max_pending=1) as pool:
        for _ in range(3):
            assert "OverflowError" in pool.submit("weighted", "7", {"rewards": [part] * 2}).result(GUARD_S).error


def test_rewards_that_cannot_be_combined_end_as_an_error():
    told = []
    together = _Together([Part("math", 1.0, "7"), None], lambda score, timed_out: told.append(score))
    for position in range(2):
        done = Future()
        done.set_result(Score.binary(True, ""))
        together.add(position, done)
    assert "cannot be combined" in told[0].error


def test_a_pool_whose_thread_fails_ends_every_call_and_says_so():
    def fail(score, timed_out):
        raise ArithmeticError("a bug")

    with VerifierPool(1, SHORT) as pool:
        pool.wait_ready()
        hung = pool.submit("math", TOWER, "7")
        pool._computing.submit(Job(Call("math", lambda: 0, "7"), fail, COMPUTES))
        reason = "the verifier pool broke: ArithmeticError: a bug"
        assert hung.result(GUARD_S).error == reason
        assert pool.submit("math", "7", "7").result(GUARD_S).error == reason
        with pytest.raises(RuntimeError, match="a bug"):
            pool.wait_ready()


def test_a_pool_is_closed_from_its_own_callback_and_by_two_threads_at_once():
    pool = VerifierPool(1, SHORT)
    pool.wait_ready()
    hung = pool.submit("math", TOWER, "7")
    pool.submit("precise_if", "fine", NO_COMMA).add_done_callback(lambda _: pool.close())
    assert hung.result(GUARD_S).error == "the verifier pool was closed"
    other = VerifierPool(1, SHORT)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: other.close(), range(4)))


def test_whoever_waits_for_a_place_while_the_pool_closes_gets_an_error():
    pool = VerifierPool(1, SHORT, max_pending=1)
    pool.wait_ready()
    pool.submit("math", TOWER, "7")
    with ThreadPoolExecutor(4) as threads:
        late = [threads.submit(pool.submit, "math", f"{i}", f"{i}") for i in range(4)]
        time.sleep(0.2)
        pool.close()
        assert {each.result(GUARD_S).result(GUARD_S).error for each in late} == {"the verifier pool was closed"}


def test_a_callback_that_raises_harms_nobody_else():
    def fail(future):
        raise ArithmeticError("the caller's bug")

    with VerifierPool(1, SHORT) as pool:
        pool.submit("math", "7", "7").add_done_callback(fail)
        assert pool.submit("math", "8", "8").result(GUARD_S).passed


def test_two_pools_work_side_by_side_and_one_outlives_the_other():
    with VerifierPool(1, SHORT) as one:
        with VerifierPool(1, SHORT) as other:
            assert all(pool.submit("math", "7", "7").result(GUARD_S).passed for pool in (one, other))
        assert one.submit("math", "8", "8").result(GUARD_S).passed


PATIENT = VerifiersConfig(time_limit_seconds=60, cache_entries=0, code={"test_seconds": 20, "total_seconds": 40})


def program(number, body, tests=1):
    source = f"```python\ndef f(n):\n    {body}  # {number}\n```"
    return Call("code", source, {"tests": ["assert f(3) == 3"] * tests})


@pytest.mark.parametrize(
    "hangs",
    [lambda i: Call("math", f"{i} {TOWER}", "7"), lambda i: program(i, "while True: pass")],
    ids=["mathematics", "code"],
)
def test_more_hanging_calls_than_slow_places_do_not_stop_the_rest(hangs):
    with VerifierPool(2, PATIENT, max_pending=400) as pool:
        pool.wait_ready()
        hung = [pool.submit(*hangs(i)) for i in range(SLOW_PLACES + 10)]
        good = [pool.submit("math", f"{i}", f"{i}") for i in range(100)]
        good += [pool.submit(*program(i, "return n")) for i in range(40)]
        assert all(future.result(GUARD_S).passed for future in good)
        assert not any(future.done() for future in hung)
        assert pool.figures()["workers/put_back"] > 0


@pytest.mark.parametrize(
    ("hangs", "good"),
    [
        (Call("math", r"\boxed{x^{20}+x^{7}+3x+1=0}", "x = 1"), lambda i: program(i, "return n")),
        (program(0, "while True: pass"), lambda i: Call("math", rf"\boxed{{x^2 + {i}x + 1}}", f"1 + {i}x + x^2")),
    ],
    ids=["mathematics among programs", "a program among mathematics"],
)
def test_one_that_hangs_makes_way_for_calls_of_the_other_kind(hangs, good):
    with VerifierPool(1, PATIENT, max_pending=400) as pool:
        pool.wait_ready()
        hung = pool.submit(*hangs)
        others = [pool.submit(*good(i)) for i in range(2, 102)]
        assert all(future.result(GUARD_S).passed for future in others)
        assert pool.figures()["workers/put_back"] > 0
        assert not hung.done()


def test_what_is_killed_in_a_rush_is_replaced_from_the_reserve():
    with VerifierPool(1, PATIENT, max_pending=400) as pool:
        pool.wait_ready()
        assert len(pool._computing._workers) == 1, "none before the pool is used"
        assert pool.submit("math", "7", "7").result(GUARD_S).passed
        assert pool.submit(*program(1, "return n")).result(GUARD_S).passed
        wait_until(lambda: settled(pool))
        before = pool.figures()["workers/started"]
        hung = [pool.submit("math", r"\boxed{x^{20}+x^{7}+3x+1=0}", f"x = {i}") for i in range(4)]
        others = [pool.submit(*program(i, "return n")) for i in range(2, 200)]
        wait_until(lambda: pool.figures()["workers/put_back"] >= len(hung))
        assert not others[-1].done()
        assert pool.figures()["workers/started"] == before
        assert all(future.result(GUARD_S).passed for future in others)
        wait_until(lambda: sum(each.ready and not each.slow for each in pool._computing._workers) == 1 + RESERVE)


def test_a_program_that_takes_longer_than_those_before_it_is_right_all_the_same_and_soon():
    """By the pace of the others it is slow, as are those that hang: it does not wait for their turns."""
    with VerifierPool(1, PATIENT, max_pending=400) as pool:
        pool.score_many(program(i, "return n") for i in range(1, 40))
        hung = [pool.submit(*program(i, "while True: pass")) for i in range(100, 100 + SLOW_PLACES)]
        longer = [pool.submit(*program(i, "return [n for _ in range(150_000)][-1]")) for i in range(200, 205)]
        assert all(future.result(GUARD_S).passed for future in longer)
        figures = pool.figures()
        assert not any(future.done() for future in hung)
    assert figures["workers/put_back"] >= len(hung)
    assert figures["workers/started"] <= 4, "two and what has begun since: those that hang have no places of their own"


def test_what_looks_long_asks_first_and_costs_the_others_no_process():
    with VerifierPool(1, PATIENT, max_pending=400) as pool:
        pool.wait_ready()
        good = [pool.submit("math", rf"\boxed{{{i}x + {i}y}}", f"{i}y + {i}x") for i in range(2, 40)]
        hung = [pool.submit("math", f"{i} {TOWER}", "7") for i in range(20)]
        good += [pool.submit("math", rf"\boxed{{x^2 + {i}}}", f"{i} + x^2") for i in range(40)]
        right = pool.submit("math", r"\boxed{2^{2^{2}}}", "16")
        assert all(future.result(GUARD_S).passed for future in good)
        assert pool.figures()["workers/started"] < len(hung) / 2, "one and what has begun since"
        assert right.result(GUARD_S).passed
        assert not any(future.done() for future in hung)


def test_programs_that_hang_take_turns_without_losing_their_sandboxes():
    with VerifierPool(1, PATIENT, max_pending=400) as pool:
        pool.wait_ready()
        hung = [pool.submit(*program(i, "while True: pass")) for i in range(SLOW_PLACES + 4)]
        give_up = time.monotonic() + GUARD_S
        while (counts := pool.figures())["workers/put_back"] < 2 * len(hung) and time.monotonic() < give_up:
            time.sleep(0.1)
        assert not any(future.done() for future in hung)
        assert counts["workers/put_back"] >= 2 * len(hung)  # for being new, and when their turn was over
        assert counts["workers/started"] < 2 + SLOW_PLACES + len(hung) / 2, "a turn that is over costs no process"


def test_what_is_right_but_slow_does_not_wait_for_all_that_hangs():
    with VerifierPool(2, PATIENT, max_pending=400) as pool:
        pool.wait_ready()
        hung = [pool.submit(*program(i, "while True: pass")) for i in range(SLOW_PLACES + 4)]
        slow = pool.submit(*program(99, "return [n for _ in range(4_000_000)][-1]"))
        assert slow.result(GUARD_S).passed
        assert not any(future.done() for future in hung)


def test_right_programs_pass_however_many_of_them_crowd_the_machine():
    count = 10 * (os.cpu_count() or 1)
    tight = VerifiersConfig(code={"test_seconds": 1.0, "total_seconds": 1.5})
    with VerifierPool(2, tight, max_pending=count) as pool:
        scores = pool.score_many(program(i, "return [n for _ in range(6_000_000)][-1]") for i in range(count))
        assert [score.detail for score in scores if not score.passed] == []
