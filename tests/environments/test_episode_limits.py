"""Episodes over a limit are scored as they stand, and processes that one has used up or left behind are ended."""

import asyncio
import os
import time

import pytest

from tasks.environments.conversation import ChatTemplate
from tasks.environments.episode import EpisodePlayer, EpisodeRequest
from tasks.environments.sessions import EnvironmentPool
from tasks.environments.tools import describe_methods
from tasks.generation.config import SamplingConfig
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.verifiers.config import EnvironmentsConfig
from tests.environments.test_episode import PROMPT, Policy, Services
from tests.environments.test_tools import written


@pytest.fixture
def play_many(tokenizer):
    """Play several episodes of an environment in one process, one after the other."""

    def playing(room, episodes, memory_mib=4096, **options):
        async def run():
            config = EnvironmentsConfig(memory_mib=memory_mib, processes=1)
            player = EpisodePlayer(EnvironmentPool(config), ChatTemplate(tokenizer, {}))
            spec = EnvironmentSpec(f"tests.environments.rooms.{room}", **options)
            policies = [Policy(tokenizer) for _ in range(episodes)]
            try:
                completions = [
                    await player.play(
                        EpisodeRequest(spec, "p", PROMPT, [1, 2], number, SamplingConfig(max_tokens=200), seed=None),
                        policy.generate,
                        Services(),
                    )
                    for number, policy in enumerate(policies)
                ]
            finally:
                await player.aclose()
            return completions, [len(policy.asked) for policy in policies]

        return asyncio.run(run())

    return playing


@pytest.mark.parametrize("how", ["awaits", "blocks", "gathers", "groups"])
def test_an_environment_whose_seconds_are_over_may_give_a_reward(play, how):
    completion = play("patient", seconds=0.3, columns={"how": how})
    assert completion.end[:2] == (0.75, False)
    assert completion.truncated


def test_the_seconds_do_not_run_while_the_policy_speaks(play, tokenizer):
    class Slow(Policy):
        async def generate(self, *given):
            await asyncio.sleep(0.3)
            return await super().generate(*given)

    completion = play("count", Slow(tokenizer), seconds=0.4)
    assert completion.end.reward == 3.0
    assert not completion.truncated


def test_an_environment_that_ignores_the_end_is_ended_with_its_process(play, monkeypatch):
    monkeypatch.setattr("tasks.environments.sessions.GRACE_SECONDS", 0.5)
    completion = play("stubborn", seconds=0.3)
    assert (completion.truncated, completion.end) == (True, None)


def test_the_reason_of_an_overrun_says_once_whose_it_is(play):
    error = play("slow_starter", seconds=0.3).end.error
    assert error == "environment tests.environments.rooms.slow_starter took more than 0.3 s"


CLASSES = {
    # A result that does not fit, no further turn, and a tool that takes too long: each leaves get_reward's 0.75.
    "tokens": (written("long"), {"max_tokens": 100}),
    "turns": (written("short"), {"turns": 1}),
    "seconds": (written("slow"), {"seconds": 0.5}),
    "seconds, awaiting": (written("slow_async"), {"seconds": 0.5}),
}


@pytest.mark.parametrize("limit", CLASSES)
def test_a_class_of_trl_is_rewarded_for_what_was_done_before_a_limit(play, tokenizer, limit):
    call, options = CLASSES[limit]
    path = "tests.environments.trl_classes.Limited"
    completion = play(
        "trl_environment",
        Policy(tokenizer, (call, "done")),
        module="tasks.environments.trl_environment",
        columns={"factory": path},
        tools=describe_methods(path),
        **options,
    )
    assert completion.end is not None, completion
    assert completion.end.reward == 0.75, completion.end.error


GIVEN = {
    "guess_number": ({"low": 1, "high": 1000, "near": True}, "500"),
    "second_try": ({}, "b"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_an_environment_of_the_project_scores_the_last_turn_that_fits(play, tokenizer, name):
    columns, text = GIVEN[name]
    policy = Policy(tokenizer, (text,))
    # One turn and its end fit; the answer of the environment does not.
    completion = play(name, policy, module=f"tasks.environments.{name}", max_tokens=12, columns=columns)
    assert completion.truncated
    assert len(completion.turns) == 1
    assert completion.end.reward is not None


@pytest.mark.long
def test_a_process_that_earlier_episodes_used_up_is_replaced(play_many):
    completions, asked = play_many("leaky", 12, memory_mib=1000, columns={"mib": 200})
    assert [completion.end.reward for completion in completions] == [1.0] * 12
    assert asked == [2] * 12  # an episode that is played again has the turns that it had


def test_files_and_aborts_are_replaced_too(play_many):
    for room in ("file_leak", "aborting"):
        completions, asked = play_many(room, 4)
        assert [completion.end.reward for completion in completions] == [1.0] * 4
        assert asked == [1] * 4


def test_an_episode_that_needs_too_much_itself_fails_once_and_for_all(play_many):
    completions, asked = play_many("hungry", 2)
    assert ["memory" in completion.end.failure.reason for completion in completions] == [True, True]
    assert asked == [1, 1]


def runs(pid):
    """Whether a process runs: it may be a zombie that nobody has waited for."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("how", ["returns", "hangs", "dies"])
def test_processes_of_an_environment_end_with_its_own(play, tmp_path, how, monkeypatch):
    monkeypatch.setattr("tasks.environments.sessions.GRACE_SECONDS", 0.5)
    file = tmp_path / "pids"
    play("starting", seconds=1.0, closes=True, columns={"file": str(file), "how": how})
    pids = [int(pid) for pid in file.read_text().split()]
    assert len(pids) == 3
    until = time.monotonic() + 10
    while any(map(runs, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in pids if runs(pid)]


@pytest.mark.parametrize("room", ["cancelled", "interrupted", "exiting_task"])
def test_what_is_no_exception_has_a_name_and_a_line_too(play, room):
    kind = {"cancelled": "CancelledError", "interrupted": "KeyboardInterrupt", "exiting_task": "SystemExit"}[room]
    reason = play(room).end.failure.reason
    assert reason.startswith(f"raised {kind} (tests/environments/rooms.py, line ")


def test_a_task_in_the_background_costs_no_reward(play, play_many):
    assert play("exiting_in_background").end.reward == 1.0
    completions, _ = play_many("deaf_task", 2)
    assert [completion.end.reward for completion in completions] == [0.75, 0.75]
    assert not completions[0].truncated


def test_an_environment_that_closes_its_connection_is_at_fault_itself(play):
    failure = play("closing").end.failure
    assert failure.reason == "closed the connection of its process"
    assert not failure.may_pass


@pytest.mark.parametrize(
    ("kind", "reward"),
    [
        ("float32", 1.5),
        ("int64", 2.0),
        ("array", 0.5),
        ("Decimal", 0.25),
        ("Outcome", 1.0),
        ("text", None),
        ("two", None),
        ("large", None),
        ("infinite", None),
    ],
)
def test_a_reward_is_a_finite_number_of_any_library(play, kind, reward):
    end = play("numbers", columns={"kind": kind}).end
    assert end.reward == reward
    assert end.passed is (reward is not None and reward >= 1 and kind != "Outcome")
    if reward is None:
        assert end.failure.reason == "must return a finite number, an Outcome or None"


def test_no_process_is_left_when_the_pool_is_closed(play):
    before = _children()
    play("count", closes=True)
    assert not [pid for pid in _children() - before if runs(pid) and "environments.worker" in _command(pid)]


def _children():
    with open(f"/proc/self/task/{os.getpid()}/children") as stream:
        return set(stream.read().split())


def _command(pid):
    with open(f"/proc/{pid}/cmdline") as stream:
        return stream.read()
