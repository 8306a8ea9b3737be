"""When a program is slow: by its own time, not by that of others."""

import math
import os
import time
from types import SimpleNamespace

import pytest

from tasks.verifiers.clocks import make_way
from tasks.verifiers.code.timing import PATIENCE_CPU_SECONDS, PATIENCE_SECONDS, Clock, OutOfTime
from tests.verifiers.test_clocks import COMPUTE, SLEEP, running


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


@pytest.mark.parametrize(("source", "patience"), [(COMPUTE, PATIENCE_CPU_SECONDS), (SLEEP, PATIENCE_SECONDS)])
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
        took = watch(waits, silent, PATIENCE_CPU_SECONDS / 3, lambda: asked.append(1) or math.inf)
    assert took > PATIENCE_CPU_SECONDS
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
