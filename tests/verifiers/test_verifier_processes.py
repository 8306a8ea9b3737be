"""Processes that compute: limits that the kernel keeps, processes that are lost, and what hangs out of the way."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.verifiers import Call, Score, VerifierPool, VerifiersConfig
from tasks.verifiers.workers import Workers
from tests.verifiers.processes import GUARD_S, HANG, busy_worker, fork_servers, wait_until, workers

NO_COMMA = {"instruction_ids": ["punctuation:no_comma"], "kwargs": [{}]}
HERE = "tests.verifiers.rewards_of_a_user"
CALLS = int(os.environ.get("RLVR_ENDURANCE_CALLS", "10000"))


def limits(seconds, **options):
    return VerifiersConfig(time_limit_seconds=seconds, **options)


@pytest.mark.long
def test_a_hang_scores_0_at_its_limit_of_cpu_time_and_the_rest_goes_on(pool):
    calls = [Call("math", HANG if i == 50 else f"it is {i}", str(i)) for i in range(200)]
    scores = pool.score_many(calls)
    assert scores[50] == Score.overrun("time limit of 2.5 s of CPU time")
    assert all(score.passed for i, score in enumerate(scores) if i != 50)
    assert pool.stats()["math"].timeouts >= 1


@pytest.mark.complete
@pytest.mark.long
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


@pytest.mark.complete
@pytest.mark.long
def test_what_is_slow_is_right_all_the_same_in_the_slow_queue():
    slow = Call("math", r"\boxed{1000000 \cdot 999999!}", "1000000!")
    with VerifierPool(1, limits(20)) as pool:
        assert pool.submit(*slow).result(GUARD_S).passed
        figures = pool.figures()
    assert figures["math/workers/patient"] == 1
    assert figures["math/workers/killed"] >= 1


@pytest.mark.long
def test_equal_answers_of_a_group_are_judged_once_in_the_slow_queue():
    with VerifierPool(1, limits(0.6)) as pool:
        group = [pool.submit("math", f"{i} steps. {HANG}", "7") for i in range(6)]
        scores = [future.result(GUARD_S) for future in group]
        figures = pool.figures()
    assert scores == [Score.overrun("time limit of 0.6 s of CPU time")] * 6
    assert figures["math/workers/patient"] == 6
    assert figures["math/workers/killed"] < 6 + 6


@pytest.mark.long
def test_good_calls_do_not_wait_for_what_hangs():
    with VerifierPool(1, limits(30)) as pool:
        hung = [pool.submit("math", f"{i} {HANG}", "7") for i in range(3)]
        assert all(score.passed for score in pool.score_many(Call("math", f"{i}", f"{i}") for i in range(100)))
        assert not any(future.done() for future in hung)


@pytest.mark.long
def test_a_memory_hungry_response_is_a_0():
    with VerifierPool(1, limits(8.0, memory_mib=700)) as small:
        score = small.submit("math", r"\boxed{2^{20000000000}}", "7").result(GUARD_S)
        assert (score.value, score.error) == (0.0, None)
        assert small.submit("math", "7", "7").result(GUARD_S).passed


@pytest.mark.long
def test_a_worker_that_others_have_bloated_is_retired_and_the_call_repeated():
    with VerifierPool(1, limits(8.0, memory_mib=700)) as small:
        ground_truth = {"function": f"{HERE}.keeps_300_mib", "columns": {}}
        scores = [small.submit("function", f"{i}", ground_truth).result(GUARD_S) for i in range(4)]
        assert [score.value for score in scores] == [1.0] * 4
        assert small.figures()["function/workers/retries"] >= 1


@pytest.mark.long
def test_a_function_that_takes_all_memory_at_once_is_an_error_of_its_own():
    with VerifierPool(1, limits(8.0, memory_mib=700)) as small:
        ground_truth = {"function": f"{HERE}.takes_a_terabyte", "columns": {}}
        score = small.submit("function", "x", ground_truth).result(GUARD_S)
        assert score.error == f"reward function {HERE}.takes_a_terabyte: too large or too deep to judge: MemoryError"


@pytest.mark.long
def test_a_killed_worker_is_replaced_and_its_call_repeated():
    with VerifierPool(1, limits(2)) as pool:
        future = pool.submit("math", HANG, "7")
        os.kill(busy_worker(), signal.SIGKILL)
        assert future.result(GUARD_S) == Score.overrun("time limit of 2 s of CPU time")
        assert pool.figures()["math/workers/retries"] == 1
        assert pool.submit("math", "7", "7").result(GUARD_S).passed


@pytest.mark.complete
@pytest.mark.long
def test_a_response_that_kills_two_workers_is_judged():
    with VerifierPool(1, limits(600)) as pool:
        future = pool.submit("math", HANG, "7")
        first = busy_worker()
        os.kill(first, signal.SIGKILL)
        os.kill(busy_worker(but=[first]), signal.SIGKILL)
        assert future.result(GUARD_S) == Score.binary(False, "ended its process twice (signal 9)")


@pytest.mark.complete
@pytest.mark.long
def test_an_idle_worker_and_a_fork_server_that_are_killed_are_replaced():
    with VerifierPool(1, limits(5)) as pool:
        known = set(workers())
        for find in (workers, fork_servers):
            assert pool.submit("math", f"{find.__name__}", "7").result(GUARD_S).error is None
            for pid in set(find()) - known:
                os.kill(pid, signal.SIGKILL)
            assert all(s.passed for s in pool.score_many(Call("math", f"{i}.0", str(i)) for i in range(50)))


@pytest.mark.long
def test_a_function_that_hangs_is_an_error_which_may_pass_where_it_waits_for_something():
    with VerifierPool(1, limits(0.5)) as pool:
        spins, waits = (
            pool.submit("function", "x", {"function": f"{HERE}.{name}", "columns": {}}).result(GUARD_S)
            for name in ("spins", "hangs")
        )
    assert "time limit of 0.5 s of CPU time" in spins.error
    assert (spins.failure.may_pass, waits.failure.may_pass) == (False, True)
    assert "did not end in 3 s, most of which it waited" in waits.error


@pytest.mark.long
def test_a_fork_that_is_cancelled_while_its_server_hangs_ends_at_once_and_the_next_one_works():
    async def scenario():
        workers = Workers("math", 1024, locked_up=True)
        await workers.wait_until_ready()
        os.kill(workers._server.pid, signal.SIGSTOP)
        forking = asyncio.create_task(workers.fork(0))
        await asyncio.sleep(0.2)
        forking.cancel()
        async with asyncio.timeout(GUARD_S / 2):
            await asyncio.wait([forking])
            worker = await workers.fork(0)
        assert forking.cancelled()
        assert workers.has(worker)
        await workers.end(worker)
        await workers.close()

    asyncio.run(scenario())


@pytest.mark.long
def test_an_end_that_is_cancelled_costs_no_other_worker_its_fork_server():
    async def scenario():
        workers = Workers("math", 1024, locked_up=True)
        first, second = await workers.fork(0), await workers.fork(0)
        os.kill(workers._server.pid, signal.SIGSTOP)
        ending = asyncio.create_task(workers.end(first))
        await asyncio.sleep(0.2)
        ending.cancel()
        await asyncio.wait([ending], timeout=GUARD_S)
        os.kill(workers._server.pid, signal.SIGCONT)
        assert ending.cancelled()
        assert workers.has(second)
        await workers.end(second)
        await workers.close()

    asyncio.run(scenario())


@pytest.mark.long
def test_a_worker_that_cannot_be_locked_up_judges_nothing(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "from tasks.verifiers import process_limits as limits\n"
        "def refuse():\n    raise OSError(1, 'refused')\n"
        "limits.lock_up = refuse\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with VerifierPool(1, limits(5)) as pool:
        assert pool.submit("math", "7", "7").result(GUARD_S).error == "a math worker failed: see stderr"


LOCKED = """
import os, socket
from tasks.verifiers import process_limits
process_limits.limit_memory(1 << 30)
process_limits.lock_up()
for act in (lambda: socket.socket(socket.AF_INET), lambda: socket.socket(socket.AF_UNIX), os.fork,
            lambda: os.execv("/bin/true", ["true"]), lambda: open("/tmp/x", "w"), lambda: os.kill(os.getppid(), 0)):
    try:
        act()
    except OSError:
        continue
    os._exit(3)
print("held", flush=True)
"""


def test_a_worker_has_neither_network_nor_programs_nor_anything_to_write_to():
    done = subprocess.run([sys.executable, "-c", LOCKED], capture_output=True, text=True, timeout=GUARD_S)
    assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr


@pytest.mark.long
def test_workers_see_nothing_of_the_environment_and_go_first_when_memory_is_short(monkeypatch):
    monkeypatch.setenv("A_SECRET", "hunter2")
    with VerifierPool(1, limits(5)) as pool:
        known = set(fork_servers())
        assert pool.submit("math", "7", "7").result(GUARD_S).passed
        (server,) = set(fork_servers()) - known
        assert b"A_SECRET" not in Path(f"/proc/{server}/environ").read_bytes()
        assert Path(f"/proc/{server}/oom_score_adj").read_text() == "1000\n"


def private_mib(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_", "Swap:"))) / 1024


@pytest.mark.complete
@pytest.mark.long
def test_nothing_grows_over_many_calls():
    def stream(start):
        for i in range(start, start + 2000):
            if i % 4000 == 500:
                yield Call("math", f"{i} {HANG}", "7")
            elif i % 10 == 0:
                yield Call("math", rf"so \boxed{{\frac{{{i}}}{{4}}}}", f"{i}/4")
            else:
                yield Call("precise_if", f"Response {i} is fine.", NO_COMMA)

    with VerifierPool(2, limits(0.6, cache_entries=200), max_pending=64) as pool:
        known = set(workers())
        assert sum(not score.passed for score in pool.score_many(stream(0))) == 1
        before = len(os.listdir("/proc/self/fd")), private_mib("self")
        for start in range(2000, CALLS, 2000):
            assert not any(score.error for score in pool.score_many(stream(start)))
        after = len(os.listdir("/proc/self/fd")), private_mib("self")
        wait_until(lambda: len(set(workers()) - known) <= 8)
        largest = max(private_mib(pid) for pid in set(workers()) - known)
    assert after[0] <= before[0] + 4
    assert after[1] <= before[1] + 20
    assert largest <= 120


def test_a_bound_on_all_memory_bounds_the_number_of_processes():
    assert [VerifiersConfig(memory_mib=1000, total_memory_mib=8000).processes(n) for n in (1, 4, 64)] == [1, 4, 4]
    with pytest.raises(ValueError, match=r"total_memory_mib.*1000.* memory_mib.*600"):
        VerifiersConfig(memory_mib=600, total_memory_mib=1000)


def test_a_lane_is_closed_to_what_is_no_json():
    with VerifierPool(1, limits(5)) as pool, socket.socket() as given:
        assert "is not JSON" in pool.submit("math", "7", given).result(GUARD_S).error
