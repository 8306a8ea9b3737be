"""Rows in the shapes of published data sets become prompts and ground truths that verifiers take."""

import json

import pytest

from tasks.sourcing.code_tests import read_tests
from tasks.sourcing.loaders import check
from tasks.sourcing.prompts import build_prompts
from tasks.sourcing.spec import SourceSpec
from tasks.sourcing.values import UnusableError, get_value, parse_structure
from tasks.verifiers import verify

CONSTRAINTS = {"instruction_id": ["punctuation:no_comma", "detectable_format:title"], "kwargs": [None, None]}


def source(tmp_path, *rows, **changes):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = {} if "row_verifier" in changes else {"domain": "math", "verifier": "math"}
    return SourceSpec.model_validate(
        {"name": "src", "loader": {"kind": "jsonl", "path": str(path)}, **judged, **changes}
    )


def prompts(tmp_path, *rows, **changes):
    built = build_prompts(source(tmp_path, *rows, **changes), 5000)
    found = [
        each | {"ground_truth": json.loads(each["ground_truth"]), "metadata": json.loads(each["metadata"])}
        for each in built.prompts.to_pylist()
    ]
    return found, built


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("reward_model.ground_truth", "34"),
        ("choices.1", "b"),
        ("as_text.0.kwargs", [1]),
        ("as_python.0.kwargs", [None]),
        ("a.dot", 5),
    ],
)
def test_a_path_leads_through_objects_lists_and_the_text_of_both(path, value):
    row = {
        "reward_model": {"ground_truth": "34"},
        "choices": ["a", "b"],
        "as_text": '["{\\"kwargs\\": [1]}"]',
        "as_python": "[{'kwargs': [None]}]",
        "a.dot": 5,
    }
    assert get_value(row, path) == value


@pytest.mark.parametrize("text", ["[1, 2", "say [1]", "{x}", "1", "[" * 10_000, "[__import__('os')]"])
def test_text_that_says_no_list_or_object_is_itself(text):
    assert parse_structure(text) == text


def test_a_path_that_leads_nowhere_is_one_error_before_the_rows_are_read(tmp_path):
    row = {"prompt": "1 + 1?", "reward_model": {"ground_truth": "2"}}
    wrong = source(tmp_path, row, columns={"ground_truth": "reward_model.groundtruth"})
    said = (
        r"nothing under 'reward_model.groundtruth' \(did you mean 'ground_truth'\?\); 'reward_model' is .'ground_truth'"
    )
    with pytest.raises(ValueError, match=said):
        check(wrong)
    with pytest.raises(ValueError, match=r"no column 'rewards'.*it has \['prompt', 'reward_model'\]"):
        check(source(tmp_path, row, columns={"ground_truth": "rewards.ground_truth"}))


def test_dapo_math_has_its_answer_in_an_object_and_its_prompt_in_a_chat(tmp_path):
    row = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": "In triangle ABC ..."}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4"},
    }
    columns = {"ground_truth": "reward_model.ground_truth", "keep": ["extra_info.index"]}
    [prompt], _ = prompts(tmp_path, row, columns=columns)
    assert prompt["ground_truth"] == "34"
    assert prompt["messages"] == row["prompt"]
    assert prompt["metadata"]["columns"] == {"extra_info.index": "9a9b6eb4"}


def test_open_reasoner_zero_is_a_list_of_pairs_with_the_answer_in_the_second_turn(tmp_path):
    pair = [{"from": "human", "value": "1 + 1?"}, {"from": "assistant", "ground_truth": {"value": "2"}}]
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps([pair, []], indent=1))
    loader = {"kind": "huggingface", "files": str(path)}
    columns = {"prompt": "0.value", "ground_truth": "1.ground_truth.value"}
    [prompt], built = prompts(tmp_path, loader=loader, columns=columns)
    assert (prompt["messages"][0]["content"], prompt["ground_truth"]) == ("1 + 1?", "2")
    assert built.reasons == {"a JSON list, not an object": 1}


def test_the_assistants_last_turns_are_left_off_and_counted_and_extra_keys_are_kept(tmp_path):
    turns = [
        {"role": "user", "content": "Hi", "language": "English", "redacted": None},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "A?"},
        {"role": "assistant", "content": "B."},
    ]
    rows = {"conversation": turns}, {"conversation": turns[:1]}
    changes = {"domain": "chat", "verifier": "chat_open", "columns": {"prompt": "conversation"}}
    [first, second], built = prompts(tmp_path, *rows, **changes)
    assert [turn["content"] for turn in first["messages"]] == ["Hi", "Yes?", "A?"]
    assert first["metadata"]["messages"] == [{"language": "English"}, {}, {}]
    assert first["metadata"]["answers_left_off"] == 1
    assert "answers_left_off" not in second["metadata"]
    assert built.counts["answers_left_off"] == 1


def test_a_chat_may_be_the_text_of_one_and_text_in_brackets_is_a_prompt(tmp_path):
    rows = (
        {"prompt": json.dumps([{"role": "user", "content": "1 + 1?"}]), "ground_truth": 2},
        {"prompt": "[1, 2, 3]", "ground_truth": 6},
    )
    found, _ = prompts(tmp_path, *rows)
    assert [each["messages"][0]["content"] for each in found] == ["1 + 1?", "[1, 2, 3]"]


DOLCI = [
    {"dataset": ["math"], "prompt": "user: 1 + 1?", "ground_truth": ["2"]},
    {"dataset": ["ifeval"], "prompt": "user: Write.", "ground_truth": [str([CONSTRAINTS])]},
    {"dataset": ["code"], "prompt": "user: f", "ground_truth": ['["assert f(1) == 2", "assert f(2) == 3"]']},
    {"dataset": ["code_stdio"], "prompt": "user: add", "ground_truth": ['[{"input": "1", "output": "2"}]']},
    {"dataset": ["general-quality_ref"], "prompt": "user: Capital of France?", "ground_truth": ["Paris"]},
    {"dataset": ["general-quality"], "prompt": "user: Poem!", "ground_truth": [""]},
    {"dataset": ["puzzle"], "prompt": "user: ?", "ground_truth": ["1"]},
]
DOLCI_SOURCE = {
    "row_verifier": {
        "column": "dataset",
        "names": {
            "math": "math",
            "ifeval": "precise_if",
            "code": "code",
            "code_stdio": "code",
            "general-quality_ref": "chat_reference",
            "general-quality": "chat_open",
        },
    },
    "columns": {
        "tests": "ground_truth",
        "instruction_ids": "ground_truth.0.0.instruction_id",
        "kwargs": "ground_truth.0.0.kwargs",
    },
}


def test_rows_of_a_published_mixture_name_their_verifiers(tmp_path):
    found, built = prompts(tmp_path, *DOLCI, **DOLCI_SOURCE)
    assert [(each["domain"], each["verifier"], each["ground_truth"]) for each in found] == [
        ("math", "math", "2"),
        ("precise_if", "precise_if", {"instruction_ids": CONSTRAINTS["instruction_id"], "kwargs": [{}, {}]}),
        ("code", "code", {"tests": ["assert f(1) == 2", "assert f(2) == 3"], "setup": ""}),
        ("code", "code", {"cases": [{"input": "1", "output": "2"}]}),
        ("chat", "chat_reference", {"reference": "Paris"}),
        ("chat", "chat_open", None),
    ]
    [set_aside] = built.set_aside.to_pylist()
    assert set_aside["reason"].startswith("dataset = 'puzzle' is not one of code, code_stdio, general-quality")


def test_where_chooses_rows_before_the_limit_is_drawn(tmp_path):
    rows = [{"prompt": f"{n}?", "ground_truth": n, "info": {"kind": "ab"[n % 2]}} for n in range(20)]
    found, built = prompts(tmp_path, *rows, where={"info.kind": ["b"]}, limit=8)
    assert len(found) == 8
    assert all(each["row"] % 2 for each in found)
    assert built.counts["read"] == 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"row_verifier": {"column": "a", "names": {"m": "math"}}, "domain": "math"}, "replaces domain and verifier"),
        ({"row_verifier": {"column": "a", "names": {"m": "maths"}}}, "row_verifier.names.m"),
        ({"row_verifier": {"column": "a", "names": {"m": "math"}}, "columns": {"tests": "t"}}, "not read by"),
        ({"domain": None}, "domain: required key is missing; one of math, code"),
        ({"transform": "f"}, "must be an import path such as my_transforms.split"),
    ],
)
def test_a_source_that_contradicts_itself_is_refused(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        source(tmp_path, {}, **changes)


ADD = "```python\ndef add(a, b):\n    return a + b\n```"
ADDS_LINES = "```python\nprint(sum(int(input()) for _ in range(2)))\n```"
KODCODE = """
from solution import add
import math

TEN = 10

def test_small():
    assert add(1, 2) == 3

def test_large():
    wanted = TEN + math.floor(0.5)
    assert add(TEN, 0) == wanted
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("column", "response", "count"),
    [
        (["assert add(1, 2) == 3"], ADD, 1),  # MBPP, AceCoder
        ('["assert add(1, 2) == 3", "assert add(0, 0) == 0"]', ADD, 2),  # the same as text
        ({"inputs": ["1\n2\n", ["3", "4"]], "outputs": ["3\n", ["7"]]}, ADDS_LINES, 2),  # APPS, TACO
        ('{"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, [7]]}', ADD, 2),
        ('{"test_cases": [{"type": "stdin_stdout", "input": "1\\n2", "output": "3"}]}', ADDS_LINES, 1),  # SYNTHETIC-1
        ({"test_cases": '{"inputs": ["1\\n2"], "outputs": ["3"]}'}, ADDS_LINES, 1),  # SYNTHETIC-2
        ('{"functional": "def check(f):\\n    assert f(1, 2) == 3\\n\\ncheck(add)"}', ADD, 1),  # code-r1
        (KODCODE, ADD, 2),
    ],
    ids=["assertions", "assertions as text", "stdin", "calls", "cases", "cases as text", "functional", "pytest"],
)
def test_tests_in_each_published_form_accept_a_right_program_and_no_wrong_one(column, response, count):
    truth = read_tests(column)
    assert len(truth.get("tests") or truth["cases"]) == count
    assert verify("code", response, truth).value == 1
    assert verify("code", response.replace("a + b", "a - b - 1").replace("sum", "max"), truth).value == 0


@pytest.mark.parametrize(
    ("tests", "kind"),
    [
        ({"inputs": ["1"], "outputs": []}, "as many inputs as outputs"),
        ({"inputs": ["1"]}, "without the lists inputs and outputs"),
        ({"fn_name": "f", "inputs": ["1"], "outputs": [1]}, "not lists of arguments"),
        ({"fn_name": "f g", "inputs": [[1]], "outputs": [1]}, "not the name of a function"),
        ("import pytest\ndef test_f():\n    with pytest.raises(ValueError):\n        f()\n", "need pytest itself"),
        ("def test_f(tmp_path):\n    assert f()\n", "fixtures or decorators"),
        ("def test_f(:\n", "the tests are not Python"),
        ("f(1) is 2", "not a list with at least one"),
        ([{"input": 3, "output": "3"}], "neither text nor a list of lines"),
    ],
)
def test_tests_that_cannot_be_used_are_set_aside_by_kind(tests, kind):
    with pytest.raises(UnusableError) as caught:
        read_tests(tests)
    assert kind in caught.value.category


def test_setup_may_be_a_list_of_imports_as_in_mbpp_sanitized(tmp_path):
    row = {"prompt": "p", "test_imports": ["import math", "import re"], "test_list": ["assert f(1) == 2"]}
    columns = {"tests": "test_list", "setup": "test_imports"}
    [prompt], _ = prompts(tmp_path, row, domain="code", verifier="code", columns=columns)
    assert prompt["ground_truth"] == {"tests": ["assert f(1) == 2"], "setup": "import math\nimport re"}
