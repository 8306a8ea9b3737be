"""The pool and the seam: limits that hold, workers that are replaced, one score whichever way one asks."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tasks.verifiers import Call, Score, VerifierPool, VerifiersConfig, verify

pytestmark = pytest.mark.long

TOWER = r"\boxed{10^{10^{10^{10}}}}"
NO_COMMA = {"instruction_ids": ["punctuation:no_comma"], "kwargs": [{}]}
SOME_CALLS = [
    *(Call("math", rf"so \boxed{{{i}}}", str(i + i % 2)) for i in range(40)),
    *(Call("math", rf"so \boxed{{\frac{{{i}}}{{4}}}}", str(i / 4)) for i in range(1, 9)),
    Call("math", "", "7"),
    Call("math", "7", ""),
    Call("precise_if", "fine", NO_COMMA),
    Call("precise_if", "well, no", NO_COMMA),
    Call("precise_if", "fine", {"instruction_ids": ["no:such"], "kwargs": [{}]}),
]
GUARD_S = 60.0


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def workers_of_this_process():
    return set(children_of(forkserver._forkserver._forkserver_pid))


def cpu_ticks(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def wait_until(condition):
    deadline = time.monotonic() + GUARD_S
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.02)


def limits(seconds, **options):
    """A configuration with a time limit, and programs that end before it."""
    return VerifiersConfig(time_limit_seconds=seconds, code={"test_seconds": 0.5, "total_seconds": 1}, **options)


@pytest.fixture
def lone():
    """A pool of one worker for tests that kill it; yields the pool and a function that finds the worker."""
    others = workers_of_this_process() if forkserver._forkserver._forkserver_pid else set()
    with VerifierPool(1, limits(4.5)) as pool:
        pool.wait_ready()
        yield pool, lambda: next(iter(workers_of_this_process() - others), None)


def kill_when_busy(pool):
    """Kill the worker while it is at the only call of `pool`; a kill before it took the call would not count."""
    workers = pool._computing._workers
    wait_until(lambda: any(each.job for each in workers))
    died = pool._computing.counters.died
    os.kill(next(each.process.pid for each in workers if each.job), signal.SIGKILL)
    wait_until(lambda: pool._computing.counters.died > died)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"'maths' is unknown; accepted: math, code, precise_if, chat_reference"):
        verify("maths", "7", "7")


def test_chat_without_a_judge_is_an_error_not_a_0():
    score = verify("chat_open", "An answer.", None)
    assert score.error == "chat_open needs a judge, and none is configured (verifiers.judge)"


def test_importing_the_seam_loads_no_checker():
    heavy = ["sympy", "math_verify", "nltk", "langdetect", "torch", "ray", "vllm"]
    script = f"import sys, tasks.verifiers; sys.exit(str([m for m in {heavy} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


def test_verify_works_from_any_thread():
    with ThreadPoolExecutor(4) as threads:
        scores = list(threads.map(lambda i: verify("math", str(i), str(i)).value, range(20)))
    assert scores == [1.0] * 20


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


def test_verify_and_both_ways_through_a_pool_agree(pool):
    async def gather():
        return await asyncio.gather(*(pool.score(*call) for call in SOME_CALLS))

    one_by_one = [verify(c.verifier, c.response, c.ground_truth, messages=c.messages) for c in SOME_CALLS]
    assert one_by_one == pool.score_many(SOME_CALLS) == asyncio.run(gather())
    assert len({(score.value, score.error is None) for score in one_by_one}) == 3


def test_a_hang_scores_0_and_the_rest_goes_on(pool):
    calls = [Call("math", TOWER if i == 50 else f"it is {i}", str(i)) for i in range(200)]
    seen = []
    scores = pool.score_many(calls, progress=seen.append)
    assert scores[50] == Score(0.0, False, "time limit of 2.5 s")
    assert all(score.passed for i, score in enumerate(scores) if i != 50)
    assert seen == sorted(seen)
    assert seen[-1] == 200
    assert pool.stats()["math"].timeouts >= 1


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{9^{9^{9^{9}}}}",
        r"\boxed{100000000!!}",
        r"\boxed{" + r"\frac{1}{" * 3000 + "2" + "}" * 3000 + "}",
        r"\boxed{" + "(" * 5000 + "1" + ")" * 5000 + "}",
        r"\boxed{" + "+".join(["x"] * 5000) + "}",
        "$" * 500_000 + "x" * 500_000,
        r"\boxed{" * 150_000,
        r"\[" * 500_000,
        "answer is" + "\n" * 1_000_000,
        r"\boxed{" + "9" * 15_000 + "^" + "9" * 4_000 + "}",
    ],
    ids=lambda response: response[:14],
)
def test_adversarial_mathematics_scores_0(pool, response):
    score = pool.submit("math", response, "7").result(GUARD_S)
    assert (score.value, score.error) == (0.0, None)


def test_a_memory_hungry_response_ends_as_0_or_an_error_never_as_reward():
    with VerifierPool(1, limits(8.0, memory_mib=700)) as small:
        score = small.submit("math", r"\boxed{2^{20000000000}}", "7").result(GUARD_S)
        assert not score.passed
        assert small.submit("math", "7", "7").result(GUARD_S).passed


def test_a_killed_worker_is_replaced_and_its_call_retried(lone):
    pool, _ = lone
    future = pool.submit("math", TOWER, "7")
    kill_when_busy(pool)
    assert future.result(GUARD_S) == Score(0.0, False, "time limit of 4.5 s")
    assert pool.figures()["workers/retries"] == 1
    assert pool.submit("math", "7", "7").result(GUARD_S).passed


def test_a_call_that_loses_two_workers_is_an_error_not_a_0(lone):
    pool, _ = lone
    future = pool.submit("math", TOWER, "7")
    kill_when_busy(pool)
    kill_when_busy(pool)
    assert future.result(GUARD_S).error == "the worker died 2 times (exit code -9)"
    assert pool.stats()["math"].errors == 1


def test_an_idle_worker_that_is_killed_is_replaced(lone):
    pool, find_worker = lone
    for _ in range(2):
        wait_until(find_worker)
        os.kill(find_worker(), signal.SIGKILL)
        assert all(s.passed for s in pool.score_many(Call("math", str(i), str(i)) for i in range(50)))


def test_submissions_wait_for_a_place():
    taken = []

    def calls():
        for i in range(30):
            taken.append(i)
            yield Call("math", f"{i}: {TOWER}" if i < 4 else str(i), str(i))

    with VerifierPool(1, limits(3.0), max_pending=4) as small:
        small.wait_ready()
        thread = threading.Thread(target=small.score_many, args=(calls(),))
        thread.start()
        time.sleep(0.5)
        waiting = len(taken)
        thread.join(GUARD_S)
    assert waiting <= 5
    assert len(taken) == 30


def test_the_event_loop_stays_free_and_a_cancelled_wait_gives_its_place_back():
    async def scenario(small):
        first = asyncio.ensure_future(small.score("math", TOWER, "7"))
        queued = [asyncio.ensure_future(small.score("math", str(i), str(i))) for i in range(4)]
        await asyncio.sleep(0.1)
        queued[0].cancel()
        queued[2].cancel()
        return [await first, await queued[1], await queued[3], await small.score("math", "5", "5")]

    with VerifierPool(1, limits(2.0), max_pending=1) as small:
        hung, *others = asyncio.run(scenario(small))
    assert hung.detail == "time limit of 2 s"
    assert [score.value for score in others] == [1.0, 1.0, 1.0]


def test_closing_ends_every_call_and_refuses_new_ones():
    pool = VerifierPool(workers=1, max_pending=50)
    futures = [pool.submit("math", TOWER, "7"), *(pool.submit("math", "x" * 100_000, "7") for _ in range(20))]
    pool.close()
    pool.close()
    assert futures[0].result(GUARD_S).error == "the verifier pool was closed"
    assert all(future.result(GUARD_S) for future in futures)
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit("math", "7", "7")


@pytest.mark.parametrize("setting", ["workers", "max_pending"])
def test_a_pool_of_nothing_is_refused(setting):
    with pytest.raises(ValueError, match=f"{setting} is 0; it must be above 0"):
        VerifierPool(**{setting: 0})


def test_no_worker_outlives_a_parent_that_is_killed():
    script = f"""
import time
from multiprocessing import forkserver
from tasks.verifiers import VerifierPool, VerifiersConfig
pool = VerifierPool(2, VerifiersConfig(time_limit_seconds=600))
pool.wait_ready()
pool.submit("math", {TOWER!r}, "7")
print(forkserver._forkserver._forkserver_pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        server = int(parent.stdout.readline())
        workers = children_of(server)
        assert len(workers) == 2
        wait_until(lambda: any(cpu_ticks(pid) > 20 for pid in workers))
        parent.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in [server, *workers]))


RUNS_ITS_MAIN = """
import sys
print("this is", __name__, flush=True)
if __name__ == "__main__":
    from tasks.verifiers import VerifierPool
    with VerifierPool(2) as pool:
        print("passed:", pool.submit("math", "7", "7").result(60).passed)
"""


def test_workers_do_not_run_the_main_module_of_their_owner(tmp_path):
    """`pyflyte` as a main module takes a second or two to import, for each worker that is replaced."""
    script = tmp_path / "owner.py"
    script.write_text(RUNS_ITS_MAIN)
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=GUARD_S, env=environment, check=True
    )
    assert done.stdout.split("\n") == ["this is __main__", "passed: True", ""]


def test_a_forked_child_is_told_that_it_has_no_workers(pool):
    assert verify("math", "7", "7").passed
    child = os.fork()
    if child == 0:
        told = 0
        for ask in (lambda: verify("math", "7", "7"), lambda: pool.submit("math", "7", "7")):
            try:
                ask()
            except RuntimeError as error:
                told += "forked" in str(error)
        os._exit(told)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    assert verify("math", "7", "7").passed
    assert pool.submit("math", "7", "7").result(GUARD_S).passed
