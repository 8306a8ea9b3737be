"""A response as a sample of a log: scores, messages, tool calls, metadata, and hostile texts that stay texts."""

import json

import pytest

from tasks.view.mapping import compute_means, make_flipped_sample, sample
from tests.view.synthetic import CALL, HOSTILE, evaluated, prompt, trained, turn


def test_a_response_has_its_scores_reason_and_origin():
    one = sample(trained(7, 1, 4), prompt("p2"), "p2", 2)
    assert (one["id"], one["epoch"], one["target"], one["tokens"], one["error"]) == ("p2", 2, "42", 7, None)
    assert [(message["role"], message["content"]) for message in one["messages"]] == [
        ("user", "What is p2?"),
        ("assistant", "answer 7.1"),
    ]
    assert one["scores"] == {
        "score": {"value": 0.5, "answer": None, "explanation": "expected 42"},
        "passed": {"value": "I", "answer": None, "explanation": "expected 42"},
        "math": {"value": 1.0, "answer": None, "explanation": ""},
    }  # `format` does not apply
    expected = {"outcome": "trained", "group": 7, "step": 4, "actor": 1, "first_version": 0, "last_version": 4}
    assert expected.items() <= one["metadata"].items()
    assert {"source": "sums", "row": 3, "verifier": "math"}.items() <= one["metadata"].items()


def test_the_advantage_is_shown_if_the_table_has_it():
    one = sample(trained(7, 1, 4) | {"advantage": -0.5, "advantage_spread": 0.25}, None, "p2", 1)
    assert (one["metadata"]["advantage"], one["metadata"]["advantage_spread"]) == (-0.5, 0.25)
    assert "p2" in one["messages"][0]["content"]


def test_a_response_without_a_score_has_the_reason_as_its_error():
    one = sample(evaluated("after", "p0", None), prompt("p0"), "p0", 1)
    assert (one["scores"], one["error"]) == ({}, "the judge is away")


def test_a_reward_named_like_a_score_does_not_replace_it():
    row = evaluated("after", "p0", True, rewards=[{"name": "score", "value": 0.25}])
    scores = sample(row, prompt("p0"), "p0", 1)["scores"]
    assert {name: score["value"] for name, score in scores.items()} == {
        "score": 1.0,
        "passed": "C",
        "reward_score": 0.25,
    }


def test_tool_calls_of_an_episode_are_matched_with_their_results():
    turns = [
        turn("assistant", f"{CALL}{CALL.replace('add', 'sub')}"),
        turn("tool", "3"),
        turn("tool", "4"),
        turn("assistant", "done"),
    ]
    _, called, first, second, last = sample(trained(0, 0, 0, turns=turns), prompt("p0"), "p0", 1)["messages"]
    assert [(call["name"], call["arguments"]) for call in called["calls"]] == [("add", {"a": 1}), ("sub", {"a": 1})]
    assert [message["answers"]["name"] for message in (first, second)] == ["add", "sub"]
    assert called["content"].startswith(CALL)  # nothing of the text is removed
    assert last["calls"] == []


def test_calls_are_found_by_the_pattern_of_the_environment():
    environment = json.dumps({"tool_pattern": r"CALL (\{.*?\}) END"})
    turns = [turn("assistant", 'CALL {"name": "add"} END')]
    messages = sample(trained(0, 0, 0, turns=turns), prompt("p0", environment=environment), "p0", 1)["messages"]
    assert messages[1]["calls"][0]["name"] == "add"


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        '["a list"]',
        '{"name": 3}',
        '{"name": "add", "arguments": "[1"}',
        f'{{"name": "add", "arguments": {{"a": {"[" * 600}{"]" * 600}}}}}',
        f'{{"name": "add", "arguments": {"[" * 100_000}',
    ],
)
def test_a_call_that_cannot_be_read_stays_text(text):
    turns = [turn("assistant", f"<tool_call>{text}</tool_call>")]
    [call] = sample(trained(0, 0, 0, turns=turns), prompt("p0"), "p0", 1)["messages"][1]["calls"]
    assert call["arguments"] == {"text": text}


def test_roles_that_inspect_does_not_know_and_restarts_are_said():
    turns = [turn("assistant", "a"), turn("environment", "b", anew=True), turn("assistant", "c")]
    one = sample(trained(0, 0, 0, turns=turns), prompt("p0"), "p0", 1)
    message = one["messages"][2]
    assert (message["role"], message["said_by"], message["restarted"]) == ("user", "environment", True)
    assert one["metadata"]["conversation begins again at turns"] == [1]


def test_hostile_texts_are_kept_and_can_be_encoded():
    asked = prompt("p0", metadata='{"note": "\\ud800 x"}', messages=[{"role": "user", "content": HOSTILE}])
    row = evaluated("after", "p0", True, response=HOSTILE, detail=HOSTILE, answer=HOSTILE)
    one = sample(row, asked, "p0", 1)
    assert json.dumps(one, ensure_ascii=False).encode()
    assert [message["content"] for message in one["messages"]] == [HOSTILE, HOSTILE]
    assert one["scores"]["score"]["explanation"] == HOSTILE
    assert one["metadata"]["columns"] == {"note": "\\ud800 x"}


def test_a_flipped_question_has_a_message_and_a_score_of_each_policy():
    rows = [("before", evaluated("before", "p0", False)), ("after", evaluated("after", "p0", True)), ("other", None)]
    one = make_flipped_sample(rows, prompt("p0"), "p0", 1)
    assert [(message.get("policy"), message["content"]) for message in one["messages"][1:]] == [
        ("before", "before says"),
        ("after", "after says"),
    ]
    # The viewer lists the first score, and the mean of the first.
    assert [(policy, score["value"]) for policy, score in one["scores"].items()] == [("after", "C"), ("before", "I")]
    unscored = make_flipped_sample([rows[0], ("after", evaluated("after", "p0", None))], prompt("p0"), "p0", 2)
    assert list(compute_means([unscored, one])) == ["after", "before"]


def test_means_are_over_the_samples_that_have_a_score():
    rows = [evaluated("after", "p0", passed) for passed in (True, False, False, None)]
    samples = [sample(row, None, "p0", 1) for row in rows]
    assert compute_means(samples) == {"score": (1 / 3, 3), "passed": (1 / 3, 3)}
