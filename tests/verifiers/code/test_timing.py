"""What a program is charged: what it computes and sleeps, not the turns that it waits for."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tasks.verifiers.code.timing import Clock, OutOfTime, TakesLong

SPIN = "while True: pass"
SLEEP = "import time; time.sleep(60)"
IN_A_THREAD = f"import threading; t = threading.Thread(target=lambda: exec({SPIN!r})); t.start(); t.join()"


@dataclass
class Watched:
    """What the clock asks of a process of the sandbox."""

    pid: int
    requests: int


@contextmanager
def running(program, core=None):
    """A process, its own pipe to wait for, which stays silent, and one for requests."""
    silent, requests = os.pipe(), os.pipe()
    with subprocess.Popen([sys.executable, "-S", "-c", program]) as process:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        yield Watched(process.pid, requests[0]), silent[0]
        process.kill()
    for descriptor in (*silent, *requests):
        os.close(descriptor)


def time_until(clock, error, program, core=None):
    with running(program, core) as (process, silent), clock.watch(process):
        clock.begin_test()
        began = time.monotonic()
        with pytest.raises(error):
            clock.wait_for(silent)
        return time.monotonic() - began


@pytest.mark.parametrize("program", [SPIN, SLEEP, IN_A_THREAD], ids=["spins", "sleeps", "spins in a thread"])
def test_a_program_is_out_of_time_by_what_it_computes_and_sleeps(program):
    clock = Clock(0.5, 5.0)
    assert time_until(clock, OutOfTime, program) >= 0.5
    assert clock.charged() == pytest.approx(0.5, abs=0.1)


@pytest.mark.long
def test_what_waits_for_its_turn_is_not_charged():
    with running(SPIN, core=0), running(SPIN, core=0), running(SPIN, core=0):
        assert time_until(Clock(0.5, 5.0), OutOfTime, SPIN, core=0) >= 1.0


@pytest.mark.long
def test_a_thread_is_charged_what_it_computes_though_another_waits_for_it():
    clock = Clock(0.5, 5.0)
    with running(SPIN, core=0), running(SPIN, core=0), running(SPIN, core=0):
        assert time_until(clock, OutOfTime, IN_A_THREAD, core=0) >= 1.0


def test_a_test_that_overran_is_charged_no_more_than_its_limit():
    clock = Clock(0.3, 5.0)
    for count in (1, 2):
        time_until(clock, OutOfTime, SPIN)
        assert clock.charged() == pytest.approx(0.3 * count, abs=0.1)


def test_all_tests_together_have_a_limit_too():
    clock = Clock(0.3, 0.5)
    for _ in range(2):
        assert not clock.over
        time_until(clock, OutOfTime, SPIN)
    assert clock.over


@pytest.mark.parametrize("program", [SPIN, SLEEP], ids=["spins", "sleeps"])
def test_under_a_small_budget_it_takes_long_before_it_is_out_of_time(program):
    time_until(Clock(0.5, 5.0, budget_seconds=0.05), TakesLong, program)


def test_what_can_be_read_is_read_however_late():
    reading, writing = os.pipe()
    clock = Clock(0.05, 0.1)
    with running(SPIN) as (process, _), clock.watch(process):
        clock.begin_test()
        time.sleep(0.2)
        os.write(writing, b"x")
        clock.wait_for(reading)
    os.close(reading)
    os.close(writing)
