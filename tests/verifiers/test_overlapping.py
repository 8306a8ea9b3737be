"""Calls of `async def` reward functions wait at the same time in one process, and none ends by what another does."""

import time

import pytest

from tasks.verifiers import VerifierPool, VerifiersConfig
from tasks.verifiers.overlapping import IN_FLIGHT, is_async
from tasks.verifiers.scores import FunctionFailure
from tests.verifiers.processes import GUARD_S
from tests.verifiers.test_functions import HERE, MESSAGES, own

WALL_S = 12.0
"""Limit of wall time of a call where that of CPU time is 2 seconds."""


@pytest.fixture
def pool():
    with VerifierPool(1, VerifiersConfig(time_limit_seconds=2)) as pool:
        pool.wait_ready(["function"])
        yield pool


def submitted(pool, name, number=0):
    return pool.submit("function", f"response {number}", own(name), MESSAGES)


def test_a_function_is_async_where_its_file_says_so():
    assert is_async(f"{HERE}.waits")
    assert not is_async(f"{HERE}.accuracy")
    assert not is_async(f"{HERE}.nowhere")
    assert not is_async("no_such_module.f")


@pytest.mark.long
def test_calls_of_one_process_wait_at_the_same_time_and_as_many_as_may(pool):
    began = time.monotonic()
    scores = [future.result(GUARD_S) for future in [submitted(pool, "waits", i) for i in range(IN_FLIGHT)]]
    seconds = time.monotonic() - began
    assert [score.value for score in scores] == [0.5] * IN_FLIGHT
    assert seconds < IN_FLIGHT / 4  # one after another they wait for a second each
    assert pool.figures()["function/workers/started"] == 1
    began = time.monotonic()
    more = [submitted(pool, "waits", IN_FLIGHT + i) for i in range(IN_FLIGHT + 1)]
    assert all(future.result(GUARD_S).value == 0.5 for future in more)
    assert time.monotonic() - began >= 2.0


@pytest.mark.long
def test_different_functions_share_the_process_and_its_event_loop(pool):
    waiting = [submitted(pool, name) for name in ("waits", "later", "raises_later")]
    waits, later, raises = (future.result(GUARD_S) for future in waiting)
    assert (waits.value, later.value) == (0.5, 0.25)
    assert raises.error.startswith(f"reward function {HERE}.raises_later raised KeyError: 'no such column'")
    assert not raises.failure.may_pass
    assert [submitted(pool, "keeps_the_loop", i).result(GUARD_S).value for i in range(3)] == [1.0] * 3
    assert submitted(pool, "length_penalty").result(GUARD_S).reward == 2.0


@pytest.mark.long
def test_a_call_that_waits_for_ever_ends_at_its_own_limit_and_others_go_on(pool):
    forever = submitted(pool, "waits_forever")
    assert [submitted(pool, "waits", i).result(GUARD_S).value for i in range(2)] == [0.5] * 2
    score = forever.result(GUARD_S)
    reason = f"the judgement did not end in {WALL_S:g} s, most of which it waited"
    assert score.failure == FunctionFailure(f"{HERE}.waits_forever", reason, may_pass=True)
    assert score.timed_out
    assert pool.figures()["function/workers/died"] == 0


@pytest.mark.long
def test_a_call_that_computes_without_end_is_judged_alone_and_so_are_those_beside_it(pool, caplog):
    beside = [submitted(pool, "waits", i) for i in range(3)]
    score = submitted(pool, "spins_on_the_loop").result(GUARD_S)
    assert score.failure.function == f"{HERE}.spins_on_the_loop"
    assert score.timed_out
    assert [future.result(GUARD_S).value for future in beside] == [0.5] * 3
    assert "their process was lost with" in caplog.text
    assert submitted(pool, "later").result(GUARD_S).value == 0.25  # a new process for the others


@pytest.mark.complete
@pytest.mark.long
def test_a_call_that_blocks_the_event_loop_is_never_a_hung_run(pool):
    beside = submitted(pool, "waits")
    score = submitted(pool, "blocks_the_loop").result(2 * GUARD_S)
    assert score.failure.reason == f"the judgement did not end in {WALL_S:g} s, most of which it waited"
    assert beside.result(GUARD_S).value == 0.5


@pytest.mark.long
def test_a_pool_closes_while_calls_wait():
    with VerifierPool(1, VerifiersConfig(time_limit_seconds=2)) as pool:
        waiting = [submitted(pool, "waits_forever", i) for i in range(3)]
        assert submitted(pool, "later").result(GUARD_S).value == 0.25
        began = time.monotonic()
    assert time.monotonic() - began < WALL_S / 2
    assert all(future.result(GUARD_S).error for future in waiting)
