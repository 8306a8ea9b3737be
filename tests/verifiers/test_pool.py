"""The pool and the seam: one score whichever way one asks, each call judged once, nothing started unasked."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tasks.verifiers import Call, Score, VerifierPool, VerifiersConfig, VerifierStats, verify
from tasks.verifiers.pool import CLOSED
from tests.verifiers.processes import (
    FORK_SERVER,
    GUARD_S,
    HANG,
    SERVER,
    command,
    descendants,
    fork_servers,
    wait_until,
    workers,
)

NO_COMMA = {"instruction_ids": ["punctuation:no_comma"], "kwargs": [{}]}
PROGRAM = Call("code", "```python\ndef f(n):\n    return n\n```", {"tests": ["assert f(3) == 3"]})
SOME_CALLS = [
    *(Call("math", rf"so \boxed{{{i}}}", str(i + i % 2)) for i in range(40)),
    *(Call("math", rf"so \boxed{{\frac{{{i}}}{{4}}}}", str(i / 4)) for i in range(1, 9)),
    Call("math", "", "7"),
    Call("math", "7", ""),
    Call("precise_if", "fine", NO_COMMA),
    Call("precise_if", "well, no", NO_COMMA),
    Call("precise_if", "fine", {"instruction_ids": ["no:such"], "kwargs": [{}]}),
]
SHORT = VerifiersConfig(time_limit_seconds=1.2, cache_entries=200)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"'maths'.* math, code, precise_if, chat_reference"):
        verify("maths", "7", "7")


def test_chat_without_a_judge_is_an_error_not_a_0():
    score = verify("chat_open", "An answer.", None)
    assert score.error == "chat_open needs a judge, and none is configured (verifiers.judge)"


@pytest.mark.long
def test_importing_the_seam_loads_no_checker():
    heavy = ["sympy", "math_verify", "nltk", "langdetect", "torch", "ray", "vllm"]
    script = f"import sys, tasks.verifiers; sys.exit(str([m for m in {heavy} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


def started_by_a_program_and_by_mathematics():
    """Commands of the processes of a pool after each of two calls."""
    with VerifierPool(1, SHORT) as pool:
        assert pool.submit(*PROGRAM).result(GUARD_S).passed
        first = [command(pid) for pid in descendants()]
        assert pool.submit("math", "7", "7").result(GUARD_S).passed
        return first, len(fork_servers())


@pytest.mark.complete
@pytest.mark.long
def test_nothing_is_started_that_is_not_asked_for():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        first, after_mathematics = process.submit(started_by_a_program_and_by_mathematics).result()
    assert any(SERVER in line for line in first)
    assert not any(FORK_SERVER in line for line in first)
    assert after_mathematics == 1


@pytest.mark.long
def test_verify_works_from_any_thread():
    with ThreadPoolExecutor(4) as threads:
        scores = list(threads.map(lambda i: verify("math", str(i), str(i)).value, range(20)))
    assert scores == [1.0] * 20


@pytest.mark.long
@pytest.mark.parametrize("response", ["", "\x00", "\ud800", "}" * 100, None, 7])
def test_verify_never_raises_for_a_response(response):
    for verifier, ground_truth in (("math", "7"), ("precise_if", NO_COMMA), ("math", object()), ("math", lambda: 0)):
        assert isinstance(verify(verifier, response, ground_truth), Score)


def test_unjudged_is_not_a_score_of_0():
    malformed, wrong = verify("math", "7", []), verify("math", "7", "8")
    assert malformed.error == "malformed ground truth: the list of accepted answers is empty"
    assert (wrong.value, wrong.error) == (0.0, None)
    with pytest.raises(AssertionError, match="outside"):
        Score(1.5, True, "")


@pytest.mark.long
def test_verify_and_both_ways_through_a_pool_agree(pool):
    async def gather():
        return await asyncio.gather(*(pool.score(*call) for call in SOME_CALLS))

    one_by_one = [verify(c.verifier, c.response, c.ground_truth, messages=c.messages) for c in SOME_CALLS]
    assert one_by_one == pool.score_many(SOME_CALLS) == asyncio.run(gather())
    assert len({(score.value, score.error is None) for score in one_by_one}) == 3


@pytest.mark.long
def test_progress_is_told_in_order_to_the_last(pool):
    seen = []
    pool.score_many([Call("math", f"it is {i}", str(i)) for i in range(200)], progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 200


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("response", "ground_truth", "counted"), [("7", [], "errors"), (HANG, "7", "timeouts")], ids=["error", "time-out"]
)
def test_neither_errors_nor_time_outs_are_remembered(response, ground_truth, counted):
    with VerifierPool(1, VerifiersConfig(time_limit_seconds=0.5)) as pool:
        scores = [pool.submit("math", response, ground_truth).result(GUARD_S) for _ in range(2)]
        stats = pool.stats()["math"]
    assert scores[0] == scores[1]
    assert (stats.calls, stats.repeated, getattr(stats, counted)) == (2, 0, 2)


@pytest.mark.complete
@pytest.mark.long
def test_no_more_scores_are_remembered_than_asked_for_and_the_oldest_go_first():
    with VerifierPool(1, SHORT) as pool:
        pool.score_many(Call("precise_if", f"Response {i}.", NO_COMMA) for i in range(SHORT.cache_entries + 50))
        pool.submit("precise_if", f"Response {SHORT.cache_entries}.", NO_COMMA).result(GUARD_S)
        pool.submit("precise_if", "Response 0.", NO_COMMA).result(GUARD_S)
        assert pool.stats()["precise_if"].repeated == 1


SHAPELESS = [[{"role": "user"}], [{}], ["user"], 7, [{"role": "user", "content": "\ud800"}]]
"""Messages with no content, of no keys, that are no objects, no list, and no unicode."""


@pytest.mark.long
def test_messages_of_the_wrong_shape_cost_no_place():
    with VerifierPool(1, SHORT, max_pending=1) as pool:
        for number, messages in enumerate([*SHAPELESS, *SHAPELESS]):
            assert pool.submit("math", f"{number}", f"{number}", messages).result(GUARD_S).passed


@pytest.mark.parametrize("weight", [1e308, 10**400], ids=["sum", "integer"])
def test_weights_that_no_float_holds_are_an_error_and_cost_no_place(weight):
    part = {"verifier": "math", "weight": weight, "ground_truth": "7"}
    with VerifierPool(1, SHORT, max_pending=1) as pool:
        for _ in range(3):
            assert "OverflowError" in pool.submit("weighted", "7", {"rewards": [part] * 2}).result(GUARD_S).error


@pytest.mark.complete
@pytest.mark.long
def test_submissions_wait_for_a_place():
    taken = []

    def calls():
        for i in range(30):
            taken.append(i)
            yield Call("math", f"{i}: {HANG}" if i < 4 else str(i), str(i))

    with VerifierPool(1, VerifiersConfig(time_limit_seconds=0.5), max_pending=4) as small:
        small.wait_ready(["math"])
        thread = threading.Thread(target=small.score_many, args=(calls(),))
        thread.start()
        wait_until(lambda: len(taken) >= 5)
        waiting = len(taken)
        thread.join(GUARD_S)
    assert waiting == 5
    assert len(taken) == 30


@pytest.mark.long
def test_the_event_loop_stays_free_and_a_cancelled_wait_harms_nobody():
    async def scenario(small):
        first = asyncio.ensure_future(small.score("math", HANG, "7"))
        queued = [asyncio.ensure_future(small.score("math", str(i), str(i))) for i in range(4)]
        same = asyncio.ensure_future(small.score("math", HANG, "7"))
        await asyncio.sleep(0.1)
        for future in (queued[0], queued[2], same):
            future.cancel()
        return [await first, await queued[1], await queued[3], await small.score("math", "5", "5")]

    with VerifierPool(1, SHORT) as small:
        hung, *others = asyncio.run(scenario(small))
    assert hung.detail == "time limit of 1.2 s of CPU time"
    assert [score.value for score in others] == [1.0, 1.0, 1.0]


def test_closing_ends_every_call_and_refuses_new_ones():
    pool = VerifierPool(workers=1, max_pending=50)
    futures = [pool.submit("math", HANG, "7"), *(pool.submit("math", "x" * 100_000, "7") for _ in range(20))]
    pool.close()
    pool.close()
    assert futures[0].result(GUARD_S).error == "the verifier pool was closed"
    assert all(future.result(GUARD_S) for future in futures)
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit("math", "7", "7")


def test_a_pool_that_is_closed_while_it_starts_logs_nothing(caplog):
    with VerifierPool(1, SHORT) as pool:
        pool.start(["math"])
    gc.collect()
    assert not caplog.records


def test_a_start_that_takes_too_long_is_named_with_its_limit(monkeypatch):
    monkeypatch.setattr("tasks.verifiers.workers.START_SECONDS", 0.001)
    with VerifierPool(1, SHORT) as pool:
        errors = [pool.submit("math", "7", "7").result().error for _ in range(2)]
    assert errors == ["the fork server of math workers takes longer to start than 0.001 s"] * 2


@pytest.mark.long
def test_a_pool_is_closed_from_its_own_callback_and_by_two_threads_at_once():
    pool = VerifierPool(1, VerifiersConfig(time_limit_seconds=GUARD_S))
    hung = pool.submit("math", HANG, "7")
    pool.submit("precise_if", "fine", NO_COMMA).add_done_callback(lambda _: pool.close())
    assert hung.result(GUARD_S).error == "the verifier pool was closed"
    other = VerifierPool(1, SHORT)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: other.close(), range(4)))


@pytest.mark.long
def test_whoever_waits_for_a_place_while_the_pool_closes_gets_an_error():
    pool = VerifierPool(1, SHORT, max_pending=1)
    pool.submit("math", HANG, "7")
    with ThreadPoolExecutor(4) as threads:
        late = [threads.submit(pool.submit, "math", f"{i}", f"{i}") for i in range(4)]
        wait_until(workers)
        pool.close()
        assert {future.result(GUARD_S).result(GUARD_S).error for future in late} == {CLOSED}


@pytest.mark.complete
@pytest.mark.long
def test_a_callback_that_raises_harms_nobody_else():
    def fail(future):
        raise ArithmeticError("the caller's bug")

    with VerifierPool(1, SHORT) as pool:
        pool.submit("math", "7", "7").add_done_callback(fail)
        assert pool.submit("math", "8", "8").result(GUARD_S).passed


@pytest.mark.complete
@pytest.mark.long
def test_two_pools_work_side_by_side_and_one_outlives_the_other():
    with VerifierPool(1, SHORT) as one:
        with VerifierPool(1, SHORT) as other:
            assert all(pool.submit("math", "7", "7").result(GUARD_S).passed for pool in (one, other))
        assert one.submit("math", "8", "8").result(GUARD_S).passed


@pytest.mark.parametrize("setting", ["workers", "max_pending"])
def test_a_pool_of_nothing_is_refused(setting):
    with pytest.raises(ValueError, match=f"{setting} is 0"):
        VerifierPool(**{setting: 0})


@pytest.mark.long
def test_nothing_outlives_an_owner_that_is_killed():
    script = f"""
import time
from tasks.verifiers import VerifierPool, VerifiersConfig
pool = VerifierPool(2, VerifiersConfig(time_limit_seconds=600))
pool.wait_ready(["math", "code"])
pool.submit(*{tuple(PROGRAM)!r}).result()
pool.submit("math", {HANG!r}, "7")
print("hangs", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        owner.stdout.readline()
        wait_until(lambda: workers(owner.pid))
        below = descendants(owner.pid)
        owner.kill()
    assert len(below) >= 4
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))


@pytest.mark.complete
@pytest.mark.long
def test_processes_do_not_run_the_main_module_of_their_owner(tmp_path):
    """`pyflyte` as a main module takes a second or two to import, for each process that is started."""
    script = tmp_path / "owner.py"
    script.write_text("""
print("this is", __name__, flush=True)
from tasks.verifiers import verify
print("passed:", verify("math", "7", "7").passed)
""")
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=GUARD_S, env=environment, check=True
    )
    assert done.stdout.split("\n") == ["this is __main__", "passed: True", ""]


@pytest.mark.long
def test_a_forked_child_is_refused_the_pool_of_its_parent_and_may_have_its_own(pool):
    assert verify("math", "7", "7").passed
    child = os.fork()
    if child == 0:
        try:
            pool.submit("math", "7", "7")
        except RuntimeError as error:
            refused = "forked" in str(error)
        os._exit(0 if refused and verify("math", "7", "7").passed else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert verify("math", "7", "7").passed
    assert pool.submit("math", "7", "7").result(GUARD_S).passed


def held_after_pools(count):
    """Descriptors, threads and processes of this process after each of `count` pools was used and closed."""
    held = []
    for _ in range(count):
        with VerifierPool(1, SHORT) as pool:
            pool.submit("math", HANG, "7")
            assert all(
                future.result(GUARD_S).passed for future in (pool.submit("math", "7", "7"), pool.submit(*PROGRAM))
            )
        gc.collect()
        held.append((len(os.listdir("/proc/self/fd")), threading.active_count(), len(descendants())))
    return held


@pytest.mark.complete
@pytest.mark.long
def test_pools_that_come_and_go_leave_nothing():
    # in a process of its own: what earlier tests left in this one may come and go meanwhile
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        first, *later = process.submit(held_after_pools, 3).result()
    assert later == [first] * 2


def test_busy_time_counts_at_most_as_many_processes_as_a_verifier_has():
    """One call for 2 s, two for 1 s, three for 2 s, on two processes: 2 + 2 + 4 s."""
    stats = VerifierStats()
    for now, calls in ((10.0, 1), (12.0, 1), (13.0, 1), (15.0, -3), (99.0, 0)):
        stats.advance(now, 2, calls)
    assert (stats.busy_s, stats.in_flight) == (8.0, 0)
    assert stats.figures()["busy_seconds"] == 8.0
