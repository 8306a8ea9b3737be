"""Environments of the package `verifiers`, the real one, with a scripted policy behind them."""

import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("verifiers.v1")

from tasks.environments.interface import EpisodeOver
from tasks.environments.verifiers_package import rows, verifiers_package
from tests.environments.scripted import play

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("uv") is None, reason="its harnesses are started by uv"),
]
ENVIRONMENT = {
    "taskset": {"id": "verifiers_numbers"},
    "player": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}},
    "interception": {"type": "server"},
}


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield
    sys.modules.pop("verifiers_numbers", None)


def episode(*texts, task=0, messages=None, **options):
    messages = messages or rows(ENVIRONMENT, 3)[task]["messages"]
    return play(verifiers_package, texts, env=ENVIRONMENT, task=task, messages=messages, **options)


def test_rows_hold_the_prompts_of_the_tasks():
    assert rows(ENVIRONMENT, 2) == [
        {
            "messages": [
                {"role": "system", "content": "A game."},
                {"role": "user", "content": f"Name number {number}."},
            ],
            "task": number,
        }
        for number in range(2)
    ]


def test_an_episode_of_three_turns_has_the_environments_reward():
    played = episode("1", "2", "5", task=1)
    assert played.inserted == [{"role": "user", "content": "Try again."}] * 2
    assert played.result.reward == 1.0


def test_another_prompt_than_the_tasks_begins_the_tasks_conversation_anew():
    played = episode("5", messages=[{"role": "user", "content": "Other"}])
    assert played.anew == [True]
    assert played.contents == ["A game.", "Name number 0."]


def test_a_limit_of_turns_ends_the_episode():
    with pytest.raises(EpisodeOver):
        episode("1", "2", "3")


def test_a_task_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="verifiers_numbers has no task 7"):
        play(verifiers_package, ["5"], env=ENVIRONMENT, task=7)
