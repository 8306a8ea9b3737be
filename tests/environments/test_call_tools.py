"""The environment of tools: calls of a turn, their results, and the verifier's judgement of the turn without one."""

import pytest

from tasks.environments.call_tools import call_tools
from tasks.environments.tools import PATTERN, Toolbox, make_pattern_parser
from tasks.verifiers.scores import CannotJudge
from tests.environments.scripted import play
from tests.environments.test_tools import tool, written


@pytest.fixture(scope="module")
def tools():
    return Toolbox([tool(name) for name in ("add", "look_up", "broken", "long")], make_pattern_parser(PATTERN))


def test_results_come_back_until_a_turn_calls_nothing(tools):
    turns = [written("add", a=1, b=2) + written("add", a=3, b=4), written("add", a=3, b=7), "It is 10.", "never"]
    played = play(call_tools, turns, tools=tools)
    assert played.result is None  # so that the verifier judges the last turn
    assert played.inserted == [{"role": "tool", "content": content} for content in ("3", "7", "10")]


def test_what_is_thought_is_not_called(tools):
    assert play(call_tools, [f"<think>{written('add', a=1, b=2)}</think>three"], tools=tools, turns=3).inserted == []


def test_calls_of_the_last_permitted_turn_are_not_made(tools):
    assert play(call_tools, [written("add", a=1, b=2)], tools=tools).inserted == []


def test_results_are_plain_and_bounded(tools):
    played = play(
        call_tools,
        [written("look_up", word="cat"), written("long", count=100_000), "done"],
        tools=tools,
        control_tokens=["<|im_end|>"],
        max_output_chars=100,
        role="user",
    )
    assert "< |im_end|>" in played.contents[0]
    assert len(played.contents[1]) < 200


def test_a_mistake_in_a_tool_ends_the_episode(tools):
    with pytest.raises(CannotJudge):
        play(call_tools, [written("broken", word="a"), "done"], tools=tools)


@pytest.mark.parametrize("options", [{"role": "system"}, {"max_output_chars": 0}, {"tools": None}])
def test_options_out_of_range_are_refused(tools, options):
    with pytest.raises(ValueError, match="call_tools: "):
        play(call_tools, ["a", "b"], **{"tools": tools, **options})
