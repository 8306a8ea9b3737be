"""What processes are charged: their CPU time and their sleep, and not the turns that they wait for."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager

from tasks.verifiers.clocks import OwnTime, cpu_seconds, make_way

COMPUTE = "import sys; print(flush=True)\nwhile True: pass"
SLEEP = "import time; print(flush=True); time.sleep(99)"


@contextmanager
def running(source, cpu=None):
    """A process that has begun to do it, on one processor if asked."""
    command = [sys.executable, "-c", source]
    if cpu is not None:
        command = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{cpu}])\n{source}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def assert_charged_as(clock, own_time):
    """What is charged for a third of a second lies between readings of a clock, as others may run between any two."""
    before = clock()
    own = own_time()
    began = clock()
    time.sleep(0.3)
    least = clock() - began
    charged = own.seconds()
    assert least - 0.02 <= charged <= clock() - before + 0.02
    return own


def test_sleep_is_charged_as_wall_time_and_uses_no_cpu():
    with running(SLEEP) as pid:
        own = assert_charged_as(time.monotonic, lambda: OwnTime(pid))
        assert own.cpu_seconds() < 0.05


def test_computing_is_charged_as_cpu_time():
    with running(COMPUTE) as pid:
        assert_charged_as(lambda: cpu_seconds(pid), lambda: OwnTime(pid))


def test_whoever_makes_way_waits_and_is_not_charged_for_it():
    cpu = min(os.sched_getaffinity(0))
    with running(COMPUTE, cpu) as behind, running(COMPUTE, cpu):
        make_way(behind)
        own, began = OwnTime(behind), time.monotonic()
        time.sleep(1.0)
        assert own.seconds() < 0.5 * (time.monotonic() - began)


def test_two_that_call_each_other_are_charged_as_one():
    with running(SLEEP) as idle, running(COMPUTE) as busy:
        began, own = time.monotonic(), OwnTime(idle, busy)
        time.sleep(0.3)
        assert own.seconds() <= time.monotonic() - began


def test_what_has_ended_costs_no_more_and_is_no_error():
    with running(SLEEP) as pid:
        own = OwnTime(pid)
    before = own.cpu_seconds()
    make_way(pid)
    assert own.cpu_seconds() == before
    assert cpu_seconds(pid) == 0


def test_all_threads_make_way():
    threads = "import threading, time\n[threading.Thread(target=time.sleep, args=(99,)).start() for _ in range(3)]\n"
    with running(threads + SLEEP) as pid:
        make_way(pid)
        tasks = [int(task) for task in os.listdir(f"/proc/{pid}/task")]
        assert {os.sched_getscheduler(task) for task in tasks} == {os.SCHED_IDLE}
        assert len(tasks) == 4
