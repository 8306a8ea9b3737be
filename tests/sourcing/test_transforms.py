"""What a user's function makes of rows, and DAPO's transformation of answers."""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.config import SpecError
from tasks.sourcing.integer_answers import ASKED, whole
from tasks.sourcing.loaders import check, fingerprint, open_rows
from tasks.sourcing.prompts import build_prompts
from tasks.sourcing.spec import SourceSpec
from tasks.sourcing.values import UnusableError
from tests.sourcing.test_adapters import source

MODULE = """
def half(row):
    if row["n"] == 3:
        return None
    return {"prompt": f"Half of {row['n']}?", "ground_truth": 100 / row["n"]}

def text(row):
    return "text"
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "transforms_for_a_test", raising=False)
    path = tmp_path / "transforms_for_a_test.py"
    path.write_text(MODULE)
    return path


def test_a_transform_rewrites_rows_and_what_it_sets_aside_is_kept_with_its_reason(tmp_path, module):
    built = build_prompts(source(tmp_path, {"n": 2}, {"n": 3}, {"n": 0}, transform=f"{module.stem}.half"), 99)
    assert [each["messages"][0]["content"] for each in built.prompts.to_pylist()] == ["Half of 2?"]
    aside = [(each["row"], each["reason"], json.loads(each["value"])) for each in built.set_aside.to_pylist()]
    assert aside == [
        (1, "transforms_for_a_test.half set it aside", {"n": 3}),
        (2, "transforms_for_a_test.half raised ZeroDivisionError: division by zero", {"n": 0}),
    ]


def test_a_changed_transform_changes_the_fingerprint(tmp_path, module):
    spec = source(tmp_path, {"n": 2}, transform=f"{module.stem}.half")
    before = fingerprint(spec)
    module.write_text(MODULE + "\n# changed\n")
    assert fingerprint(spec) != before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module.f", "transform = 'no_such_module.f': .*there is no module no_such_module"),
        ("transforms_for_a_test.other", "cannot be imported: AttributeError"),
        ("transforms_for_a_test.MODULE", "cannot be imported: AttributeError"),
        ("transforms_for_a_test.text", "returned str for a row; must be a dict or None"),
    ],
)
def test_a_transform_that_is_none_is_one_error_before_the_rows_are_read(tmp_path, module, name, said):
    with pytest.raises(SpecError, match=rf"source 'src': .*{said}"):
        check(source(tmp_path, {"n": 2}, transform=name))


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("34", ("34", "")),
        ("1,234", ("1234", "")),
        ("-7.0", ("-7", "")),
        ("3/4", ("7", ASKED)),
        (r"$-\frac{6}{8}$", ("1", ASKED)),
        ("0.25", ("5", ASKED)),
    ],
)
def test_an_answer_becomes_a_whole_number(answer, wanted):
    assert whole(answer) == wanted


@pytest.mark.parametrize("answer", [r"\sqrt{2}", "x + 1", "1/0", "(1, 2)", "1,23", ""])
def test_an_answer_that_cannot_become_whole_is_set_aside(answer):
    with pytest.raises(UnusableError, match="neither a whole number nor a fraction"):
        whole(answer)


def test_the_prompt_asks_for_the_whole_number_before_the_template_goes_on(tmp_path):
    columns = {"integer_answers": True, "template": "{prompt} Box it."}
    [prompt] = build_prompts(
        source(tmp_path, {"prompt": "Half of 1.5?", "ground_truth": "3/4"}, columns=columns), 999
    ).prompts.to_pylist()
    assert prompt["messages"][0]["content"] == f"Half of 1.5?\n\n{ASKED} Box it."
    assert json.loads(prompt["ground_truth"]) == "7"


@pytest.mark.parametrize(("kind", "key"), [("parquet", "path"), ("huggingface", "files")])
def test_only_columns_that_are_asked_for_are_read(tmp_path, kind, key):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": ["1?"], "ground_truth": ["1"], "huge": ["x" * 1000]}), path)
    loader = {"kind": kind, key: str(path)}
    spec = SourceSpec.model_validate({"name": "src", "domain": "math", "verifier": "math", "loader": loader})
    assert [row.content for row in open_rows(spec)] == [{"prompt": "1?", "ground_truth": "1"}]
    transformed = spec.model_copy(update={"transform": "copy.copy"})
    assert "huge" in next(open_rows(transformed)).content
