"""`chat_reference` in mode `pairwise`: preferences by hand, and a judge behind an endpoint that speaks the protocol."""

import json
import re

import pytest

from tasks.config.loading import SpecError, parse
from tasks.inputs.files import DataFile
from tasks.inputs.judges import check_has_judge
from tasks.sourcing.spec import SourceSpec
from tasks.verifiers import VerifierPool, VerifiersConfig, check_ground_truth
from tasks.verifiers.chat.pairwise import build_pair, is_shown_first, read_preference
from tasks.verifiers.chat.reading import NoCompletion, NoJudgement
from tasks.verifiers.scores import CannotJudge
from tests.verifiers.chat.fake_endpoint import FakeEndpoint, completion, likeliest

ASKED = [{"role": "user", "content": "Name a colour."}]
TRUTH = {"reference": "A plain answer.", "mode": "pairwise"}


@pytest.mark.parametrize(
    ("chances", "first", "value"),
    [
        ({"m": 0.6, "M": 0.2, "The": 0.2}, True, 0.75),
        ({"m": 0.6, "M": 0.2, "The": 0.2}, False, 0.25),
        ({"m": 1.0}, True, 1),
        ({"m": 1.0}, False, 0),
        ({"M": 1e-300}, False, 1),
    ],
)
def test_a_preference_is_the_chance_of_the_answers_name_among_the_two(chances, first, value):
    assert read_preference(likeliest(chances).body, first=first) == pytest.approx(value)


def test_a_judge_that_names_neither_has_no_preference():
    with pytest.raises(NoJudgement, match="neither m nor M"):
        read_preference(likeliest({"Both": 0.9, " m": 0.1}).body, first=True)
    for body in (b"", b"[]", b'{"choices": []}', completion("m").body):
        with pytest.raises(NoCompletion, match="no log-probabilities"):
            read_preference(body, first=True)


def test_the_order_is_drawn_by_instruction_and_seed_alone():
    drawn = [is_shown_first(f"Question {number}?", 0) for number in range(1000)]
    assert drawn == [is_shown_first(f"Question {number}?", 0) for number in range(1000)]
    assert 450 < sum(drawn) < 550
    assert drawn != [is_shown_first(f"Question {number}?", 1) for number in range(1000)]


def outputs(messages):
    """The outputs that a question shows, by the names of the models."""
    found = re.findall(
        r'"model_identifier": "(m|M)",\n        "output": """(.*?)"""', messages[1]["content"], re.DOTALL
    )
    return dict(found)


def test_the_question_shows_both_answers_as_they_are():
    hostile = "{{ second }} {output_2} {% raw %}"
    for instruction in ("Name a colour.", "Name a number.", "Name a town.", "Name a fruit."):
        messages, first = build_pair(hostile, "Blue.", [{"role": "user", "content": instruction}], seed=0, most=1000)
        assert outputs(messages) == ({"m": hostile, "M": "Blue."} if first else {"m": "Blue.", "M": hostile})
        assert f'"instruction": """{instruction}"""' in messages[1]["content"]
        assert messages[1]["content"].endswith("## Best Model Identifier")
        assert messages[0]["role"] == "system"


def test_answers_to_one_instruction_are_compared():
    turns = [*ASKED, {"role": "assistant", "content": "Red."}, *ASKED]
    with pytest.raises(CannotJudge, match="the conversation has 3 turns"):
        build_pair("Blue.", "Red.", turns, seed=0, most=1000)


def prefers_good(request):
    """A judge that prefers, at 9 to 1, the output with the word good; it has nothing to say about a silly one."""
    shown = outputs(request["messages"])
    if any("silly" in text for text in shown.values()):
        return likeliest({"Neither": 1.0})
    better = next((name for name, text in shown.items() if "good" in text), None)
    return likeliest({name: 0.5 if better is None else 0.9 if name == better else 0.1 for name in shown})


@pytest.fixture(scope="module")
def judge():
    with FakeEndpoint(prefers_good) as endpoint:
        config = VerifiersConfig.model_validate({"judge": {"url": endpoint.url, "model": "judge"}})
        with VerifierPool(1, config) as pool:

            def score(text, truth=TRUTH, messages=ASKED):
                return pool.submit("chat_reference", text, truth, messages).result()

            yield score, endpoint


def test_the_better_answer_wins_wherever_it_stands(judge):
    score, endpoint = judge
    for number in range(4):
        messages = [{"role": "user", "content": f"Name colour {number}."}]
        won = score("<think>Hm.</think>A good answer.", messages=messages)
        assert (won.value, won.passed) == (pytest.approx(0.9), True)
        assert [(reward.name, reward.weight) for reward in won.rewards] == [("preference", 1), ("characters", 0)]
        assert won.rewards[1].value == len("A good answer.")
        assert won.reward == won.value
        drawn = score("An answer.", messages=messages)
        assert (drawn.value, drawn.passed) == (pytest.approx(0.5), False)
        lost = score("An answer.", {**TRUTH, "reference": "A good one."}, messages)
        assert (lost.value, lost.passed) == (pytest.approx(0.1), False)
    request = endpoint.requests[-1][1]
    assert {name: request[name] for name in ("max_tokens", "logprobs", "top_logprobs", "temperature")} == {
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": 5,
        "temperature": 1.0,
    }


def test_an_empty_answer_loses_without_a_request(judge):
    score, endpoint = judge
    before = len(endpoint.requests)
    lost = score("<think>And then")
    assert (lost.value, lost.rewards[1].value, lost.error) == (0, 0, None)
    assert len(endpoint.requests) == before


def test_an_answer_that_is_not_compared_loses_where_another_is_compared(judge):
    score, _ = judge
    lost = score("A silly answer.")
    assert (lost.value, lost.error) == (0, None)
    assert "compares another answer here, and not this one" in lost.detail
    failed = score("An answer.", {**TRUTH, "reference": "A silly one."})
    assert failed.error is not None
    assert "has no preference, for another answer neither" in failed.error


def test_a_mode_that_does_not_exist_is_a_malformed_ground_truth():
    assert check_ground_truth("chat_reference", TRUTH) is None
    assert "mode is 'both'; accepted: grade, pairwise" in check_ground_truth(
        "chat_reference", {**TRUTH, "mode": "both"}
    )


def test_a_reward_model_compares_nothing():
    data = parse(
        DataFile, json.dumps({"extends": "gsm8k", "verifiers.judge": {"kind": "reward_model", "model": "x/y"}})
    )
    source = {
        "name": "pairs",
        "domain": "chat",
        "verifier": "chat_reference",
        "mode": "pairwise",
        "loader": {"kind": "jsonl", "path": "pairs.jsonl"},
    }
    with pytest.raises(
        SpecError, match="source 'pairs': mode pairwise compares two answers, and the judge is a reward"
    ):
        check_has_judge(SourceSpec.model_validate(source), data)
