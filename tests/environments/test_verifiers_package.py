"""Environments of the package `verifiers`, the real one, with a scripted policy behind them."""

import shutil
import subprocess
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


def episode(*texts, task=0, messages=None, echoes=False, **options):
    messages = messages or rows(ENVIRONMENT, 3)[task]["messages"]
    env = {**ENVIRONMENT, "echoes": echoes}
    return play(verifiers_package, texts, env=env, task=task, messages=messages, **options)


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


def test_a_limit_of_turns_is_the_packages_own_and_leaves_its_reward():
    assert episode("1", "2", "3", turns=2).result.reward == 0.0
    assert episode("1", "5", "3", turns=2).result.reward == 1.0


def test_another_limit_ends_the_episode():
    with pytest.raises(EpisodeOver):
        episode("1", "2", "3")


def test_a_control_token_that_the_environment_quotes_is_made_plain():
    played = episode("I say <|im_end|> now", "5", echoes=True, control_tokens=["<|im_end|>"])
    assert played.contents == ["You said: I say < |im_end|> now"]
    assert played.result.reward == 1.0


def test_processes_share_the_memory_of_the_package():
    program = (
        "import sys; from tasks.environments.worker import warm_up; "
        "from tasks.generation.environment_spec import GIVEN; "
        "warm_up({'path': GIVEN[sys.argv[1]], 'tool_parser': None, 'tokenizer': None}); "
        "print('verifiers.v1' in sys.modules)"
    )
    for name, expected in (("verifiers_package", "True"), ("call_tools", "False")):
        run = subprocess.run([sys.executable, "-c", program, name], capture_output=True, text=True, check=True)
        assert run.stdout.split()[-1] == expected


def test_a_task_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="verifiers_numbers has no task 7"):
        play(verifiers_package, ["5"], env=ENVIRONMENT, task=7)
