"""A judgement is exactly what was asked for; everything else is an error by name, and never a number."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.verifiers.chat.reading import (
    Judgement,
    NoJudgement,
    build_response_format,
    read_completion,
    read_judgement,
    read_usage,
)
from tests.examples import examples
from tests.verifiers.chat.fake_endpoint import completion, graded

GOOD = '{"reason": "fine", "score": 7}'

NO_JUDGEMENTS = [
    ("nothing", None, "the judge's message is empty"),
    ("empty", "", "the judge's message is empty"),
    ("blank", " \n", "the judge's message is empty"),
    ("prose", "I would give it a 7.", "not JSON"),
    ("a bare number", "7", "not an object"),
    ("a list", f"[{GOOD}]", "not an object"),
    ("two objects", f"{GOOD}\n{GOOD}", "not JSON"),
    ("an object in prose", f"Here it is: {GOOD}", "not JSON"),
    ("an object in a code block", f"```json\n{GOOD}\n```", "not JSON"),
    ("cut off", GOOD[:-3], "not JSON"),
    ("a key twice", '{"reason": "x", "score": 1, "score": 10}', "a key occurs twice"),
    ("no reason", '{"score": 7}', "not an object of reason and score"),
    ("a further key", '{"reason": "x", "score": 7, "bonus": 3}', "not an object of reason and score"),
    ("a reason that is no text", '{"reason": 7, "score": 7}', "reason is not a text"),
    ("a fraction", '{"reason": "x", "score": 7.5}', "not a whole number"),
    ("a whole float", '{"reason": "x", "score": 7.0}', "not a whole number"),
    ("a text", '{"reason": "x", "score": "7"}', "not a whole number"),
    ("true", '{"reason": "x", "score": true}', "not a whole number"),
    ("null", '{"reason": "x", "score": null}', "not a whole number"),
    ("NaN", '{"reason": "x", "score": NaN}', "NaN is not JSON"),
    ("infinity", '{"reason": "x", "score": 1e999}', "not a whole number"),
    ("above the scale", '{"reason": "x", "score": 11}', "off the scale from 1 to 10"),
    ("below the scale", '{"reason": "x", "score": 0}', "off the scale"),
    ("a percentage", '{"reason": "x", "score": 85}', "off the scale"),
    ("an endless number", '{"reason": "x", "score": 1' + "0" * 9000 + "}", "not JSON"),
    ("a long number", '{"reason": "x", "score": 1' + "0" * 4000 + "}", "off the scale"),
    ("too deep", "[" * 200_000, "not JSON"),
    ("thinking alone", f"<think>{GOOD}", "not JSON"),
]


@pytest.mark.parametrize(
    ("content", "problem"), [row[1:] for row in NO_JUDGEMENTS], ids=[row[0] for row in NO_JUDGEMENTS]
)
def test_what_is_no_judgement_is_an_error(content, problem):
    with pytest.raises(NoJudgement, match=problem):
        read_judgement(content, 1, 10)
    with pytest.raises(NoJudgement, match=problem):
        read_completion(completion(content).body, 1, 10)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "not JSON"),
        (b"<html>busy</html>", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"null", "one choice"),
        (b"{}", "one choice"),
        (b'{"choices": []}', "one choice"),
        (b'{"choices": null}', "one choice"),
        (b'{"choices": ["a"]}', "one choice"),
        (b'{"choices": [{}]}', "no message"),
        (b'{"error": {"message": "overloaded"}}', "one choice"),
        (completion(GOOD, finish_reason="length").body, "did not finish"),
        (completion(GOOD, finish_reason="content_filter").body, "did not finish"),
        (completion(GOOD, finish_reason=None).body, "did not finish"),
        (completion(None, refusal="I cannot grade that.").body, "refused"),
        (completion(GOOD, refusal="But no.").body, "refused"),
        (json.dumps({"choices": [json.loads(graded(7).body)["choices"][0]] * 2}).encode(), "one choice"),
    ],
)
def test_answers_of_an_endpoint_without_a_judgement_are_errors(body, problem):
    with pytest.raises(NoJudgement, match=problem):
        read_completion(body, 1, 10)


@pytest.mark.parametrize(
    ("content", "score"),
    [
        (GOOD, 7),
        (f"\n {GOOD} \n", 7),
        ('{"score": 1, "reason": ""}', 1),
        ('{"reason": "it says {\\"score\\": 10} and </think>", "score": 2}', 2),
        (f'<think>{{"score": 10}} no</think>\n{GOOD}', 7),
    ],
)
def test_judgements_are_read(content, score):
    assert read_judgement(content, 1, 10).score == score
    assert read_completion(completion(content).body, 1, 10).score == score


def test_the_schema_that_is_asked_for_admits_the_scale_and_no_more():
    jsonschema = pytest.importorskip("jsonschema")
    asked = build_response_format(0, 5)["json_schema"]
    assert asked["strict"] is True
    for score in range(6):
        jsonschema.validate({"reason": "x", "score": score}, asked["schema"])
        assert read_judgement(json.dumps({"reason": "x", "score": score}), 0, 5) == Judgement("x", score)
    for bad in (
        {"reason": "x", "score": 6},
        {"score": 1},
        {"reason": "x", "score": 1, "y": 1},
        {"reason": 1, "score": 1},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, asked["schema"])


def test_tokens_are_counted_where_they_are_numbers():
    assert read_usage(graded(7, usage=(11, 3)).body) == (11, 3)
    assert read_usage(graded(7, usage=("11", True)).body) == (0, 0)
    assert read_usage(graded(7, usage=(-5, 2.5)).body) == (0, 0)
    assert read_usage(b'{"usage": null}') == read_usage(b"junk") == read_usage(b"[]") == (0, 0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["reason", "score", "choices", "message", "content", "usage"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


def outcome(read, problem):
    try:
        return read(problem, 1, 10).score
    except NoJudgement as reason:
        return str(reason)


@pytest.mark.long
@settings(max_examples=examples(500), deadline=None)
@given(st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_judgement_or_an_error_by_name(body):
    result = outcome(read_completion, body)
    assert result in range(1, 11) if isinstance(result, int) else result
    assert all(count >= 0 for count in read_usage(body))


@pytest.mark.long
@settings(max_examples=examples(500), deadline=None)
@given(
    st.text(max_size=60) | JSON.map(json.dumps) | JSON.map(lambda score: json.dumps({"reason": "x", "score": score}))
)
def test_any_message_is_a_judgement_or_an_error_by_name(content):
    result = outcome(read_judgement, content)
    assert type(result) is not bool
    assert result in range(1, 11) if isinstance(result, int) else result
