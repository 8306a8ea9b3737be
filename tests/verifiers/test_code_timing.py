"""When a program is slow: by its own time, not by that of others."""

import math
import os
import time
from types import SimpleNamespace

import pytest

from tasks.verifiers.clocks import make_way
from tasks.verifiers.code.timing import PATIENCE_CPU_SECONDS, PATIENCE_SECONDS, PATIENCE_TESTS, Clock, OutOfTime, Pace
from tests.verifiers.test_clocks import COMPUTE, SLEEP, running

LEAST, MOST = PATIENCE_CPU_SECONDS


@pytest.fixture
def silent():
    """A descriptor that there is nothing to read from."""
    reading, writing = os.pipe()
    yield reading
    os.close(reading)
    os.close(writing)


def watch(pid, descriptor, at_most, on_slow):
    """Wait for a process that says nothing, until it has had `at_most` for itself; seconds that passed."""
    clock, began = Clock(5.0, 10.0, on_slow), time.monotonic()
    with clock.watching(SimpleNamespace(pid=pid)):
        clock.begin_test()
        with pytest.raises(OutOfTime):
            clock.wait_for(descriptor, at_most)
    return time.monotonic() - began


@pytest.mark.parametrize(("source", "patience"), [(COMPUTE, MOST), (SLEEP, PATIENCE_SECONDS)])
def test_a_test_is_slow_once_it_has_had_its_patience(silent, source, patience):
    asked = []
    with running(source) as pid:
        began = time.monotonic()
        watch(pid, silent, 1.5, lambda: asked.append(time.monotonic() - began) or math.inf)
    assert len(asked) == 1
    assert asked[0] >= patience


def test_whoever_waits_for_its_turn_is_not_slow(silent):
    """The time is another's: before, a program on a busy machine was taken for one that hangs."""
    asked = []
    cpu = min(os.sched_getaffinity(0))
    with running(COMPUTE, cpu) as waits, running(COMPUTE, cpu):
        make_way(waits)
        took = watch(waits, silent, MOST / 3, lambda: asked.append(1) or math.inf)
    assert took > MOST
    assert not asked


def test_what_goes_on_for_a_time_asks_again(silent):
    at_most, granted = 1.0, 0.1
    asked = []
    with running(COMPUTE) as pid:
        watch(pid, silent, at_most, lambda: asked.append(1) or granted)
    assert 2 <= len(asked) <= at_most / granted


def test_whoever_is_out_of_time_does_not_ask(silent):
    asked = []
    with running(SLEEP) as pid:
        watch(pid, silent, 0.0, lambda: asked.append(1) or math.inf)
    assert not asked


@pytest.mark.parametrize(
    ("took", "patience"),
    [
        ([], MOST),
        ([0.0001] * (PATIENCE_TESTS // 2 - 1), MOST),  # too few to go by
        ([0.0001] * PATIENCE_TESTS, LEAST),
        ([0.0001] * PATIENCE_TESTS + [0.003], 0.009),  # three times the longest
        ([0.003] + [0.0001] * PATIENCE_TESTS, LEAST),  # of the last ones
        ([0.0001] * PATIENCE_TESTS + [0.1], MOST),
    ],
)
def test_patience_follows_the_tests_that_ended(took, patience):
    pace = Pace()
    for seconds in took:
        pace.add(seconds)
    assert pace.patience == pytest.approx(patience)


def test_tests_that_end_make_the_pace_and_those_that_do_not_are_measured_by_it(silent):
    pace, asked = Pace(), []
    clock = Clock(5.0, 10.0, lambda: asked.append(clock._own.cpu_seconds()) or math.inf, pace)
    with running(COMPUTE) as pid, clock.watching(SimpleNamespace(pid=pid)):
        for _ in range(PATIENCE_TESTS):
            clock.begin_test()
            clock.end_test()
        assert pace.patience == LEAST
        clock.begin_test()
        began = clock._own.cpu_seconds()
        with pytest.raises(OutOfTime):
            clock.wait_for(silent, 0.5)
    assert len(pace._took) == PATIENCE_TESTS, "what does not end by itself makes no pace"
    assert asked[0] - began >= LEAST
