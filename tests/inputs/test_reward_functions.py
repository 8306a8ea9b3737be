"""Reward functions are called on dummy responses before anything is sampled; one that always fails is refused."""

import json

import pytest

from tasks.config.loading import SpecError
from tasks.inputs.files import DataFile
from tasks.inputs.rewards import check_rewards
from tasks.sourcing import loaders

CODE = """
import json

def fine(completions, prompts, topic, ground_truth, **columns):
    assert topic == ["sums"] and prompts[0][-1]["content"].startswith("What is")
    return [float(truth in completion[0]["content"]) for completion, truth in zip(completions, ground_truth)]

def strings(completions, **columns):
    return [float("x" in completion.lower()) for completion in completions]

def needs_text(completions, **columns):
    return [float(len(json.loads(completions[0][0]["content"] or "{}")))]

def keyword(completions, answer):
    return [1.0]

def nothing(completions, **columns):
    return None

def not_a_number(completions, **columns):
    return [float("nan")]

def wrong_length(completions, **columns):
    return [1.0, 0.0]

def is_away(completions, **columns):
    raise ConnectionRefusedError("port 8000")

def first_only(completions, **columns):
    return [1.0]

def share(completions, topic=None, **columns):
    return [1.0 / len(completions) for _ in completions]

def spread(completions, **columns):
    return [1.0 / (len(completions) - 1) for _ in completions]

def first_row_only(completions, ground_truth, **columns):
    return [1.0 / (float(ground_truth[0]) - 2)]
"""


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Check one reward function of a source of sums, which is written with `CODE` beside it."""
    module = f"made_up_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(CODE)
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1), "topic": "sums"} for n in range(1, 5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def checked(name, columns=(), **source):
        own = {
            "name": "sums",
            "domain": "math",
            "verifier": "math",
            "loader": {"kind": "jsonl", "path": "rows.jsonl"},
            "columns": {"prompt": "question", "ground_truth": "answer"},
            "rewards": [{"function": f"{module}.{name}", "columns": list(columns)}],
        }
        for reward in source.get("rewards", []):
            if "function" in reward:
                reward["function"] = reward["function"].replace("MODULE", module)
        data = DataFile.model_validate({"name": "my-data", "sources": [own | source]})
        [read] = data.sources
        check_rewards(read, loaders.check(read), data)

    return checked


def test_a_function_gets_columns_and_answer_of_a_real_row(check, caplog):
    check("fine", ["topic"])
    check("fine", ["topic"], verifier="function", domain="sums-of-mine")
    assert not caplog.messages


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("strings", "strings raised AttributeError: 'list' object has no attribute 'lower' (made_up_"),
        ("strings", ".py, line 9); it fails like this on each of 9 dummy responses"),
        ("keyword", "keyword raised TypeError: keyword() got an unexpected keyword argument"),
        ("nothing", "nothing must return a list with one value per completion, got None"),
        ("not_a_number", "not_a_number returned nan, which is not finite"),
        ("wrong_length", "wrong_length must return a list with one value per completion, got [1.0, 0.0]"),
        ("nowhere", "nowhere cannot be imported: AttributeError"),
    ],
)
def test_a_function_that_fails_whatever_the_response_is_is_refused_in_one_sentence(check, name, said):
    with pytest.raises(SpecError) as error:
        check(name)
    assert str(error.value).startswith("my-data: source 'sums': reward function made_up_")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_one_that_refuses_some_responses_or_one_row_is_named_and_not_refused(check, caplog):
    check("needs_text")
    check("first_row_only")
    first, second = caplog.messages
    assert "needs_text raised JSONDecodeError" in first
    assert "first_row_only raised ZeroDivisionError" in second
    assert second.endswith("it fails like this on one dummy response, not on others")


def test_one_whose_service_is_not_up_yet_is_named_and_not_refused(check, caplog):
    check("is_away")
    assert "it could not be tested here" in caplog.text
    assert "is_away raised ConnectionRefusedError: port 8000" in caplog.text


def test_a_module_that_is_nowhere_is_refused(check):
    with pytest.raises(SpecError, match=r"source 'sums': reward function no_such\.f: there is no module no_such"):
        check("fine", rewards=[{"function": "no_such.f"}])


def test_a_function_of_a_group_is_called_with_several_responses_and_refused_where_it_returns_too_few(check):
    with pytest.raises(SpecError) as error:
        check("first_only", rewards=[{"function": "MODULE.first_only", "group": True}])
    assert "got [1.0] for 3 completions" in str(error.value)
    assert str(error.value).endswith("it fails like this on each of 6 dummy groups of responses")
    check("share", rewards=[{"function": "MODULE.share", "group": True}])


def test_one_that_cannot_judge_a_response_alone_is_named_and_not_refused(check, caplog):
    check("spread", rewards=[{"function": "MODULE.spread", "group": True}])
    [line] = caplog.messages
    assert "spread raised ZeroDivisionError" in line
    assert line.endswith("it fails on a group of one response, which a stage has with samples: 1")


def test_group_is_for_a_function(check):
    with pytest.raises(ValueError, match="group is for a function; a verifier scores each response alone"):
        check("share", rewards=[{"verifier": "math", "group": True}])
