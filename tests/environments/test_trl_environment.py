"""A class as TRL takes it: methods are tools, the first observation ends the prompt, the reward is the episode's."""

import pytest

from tasks.environments.tools import PATTERN, Toolbox, describe_methods, make_pattern_parser
from tasks.environments.trl_environment import trl_environment
from tasks.verifiers.scores import CannotJudge
from tests.environments.scripted import play
from tests.environments.test_tools import written

MODULE = "tests.environments.trl_classes"


def playing(name, texts, **options):
    path = f"{MODULE}.{name}"
    tools = Toolbox(describe_methods(path), make_pattern_parser(PATTERN))
    return play(trl_environment, texts, tools=tools, factory=path, **options)


def test_public_methods_are_tools_and_self_is_no_parameter():
    schemas = [tool["schema"]["function"] for tool in describe_methods(f"{MODULE}.Counter")]
    assert [schema["name"] for schema in schemas] == ["add", "look"]
    assert list(schemas[0]["parameters"]["properties"]) == ["amount"]


def test_an_episode_has_the_reward_of_its_own_instance():
    turns = [written("add", amount=2), written("add", amount=-1) + written("look"), written("add", amount=3), "done"]
    played = playing("Counter", turns, target=5, control_tokens=["<|im_end|>"])
    assert played.anew == [True, False, False, False]
    assert played.contents == [
        "Begin. Reach 5.< |im_end|>",
        "The count is 2.",
        "Error: ValueError: the count never falls",
        "2 of 5",
        "The count is 5.",
    ]
    assert played.result.reward == 1.0
    assert playing("Counter", ["done"], target=5).result.reward == 0.0


def test_a_limit_of_turns_leaves_the_reward_of_what_was_done():
    assert playing("Counter", [written("add", amount=5), written("look")], target=5).result.reward == 1.0


def test_without_a_reward_of_its_own_the_verifier_judges():
    played = playing("Silent", [written("ping"), "done"])
    assert (played.result, played.contents, played.anew) == (None, ["pong"], [False, False])


@pytest.mark.parametrize("name", ["WithoutReset", "WithoutTools", "missing"])
def test_a_class_that_trl_would_not_take_is_refused(name):
    with pytest.raises(CannotJudge, match=name):
        describe_methods(f"{MODULE}.{name}")
