"""What a user's function makes of rows, and DAPO's transformation of answers."""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.config.loading import SpecError
from tasks.lineage.user_code import find_user_files
from tasks.sourcing.integer_answers import ASKED, make_whole
from tasks.sourcing.loaders import check, compute_fingerprint, open_rows
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
    for name in [name for name in sys.modules if name.partition(".")[0].endswith("_for_a_test")]:
        monkeypatch.delitem(sys.modules, name)
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
    before = compute_fingerprint(spec)
    module.write_text(MODULE + "\n# changed\n")
    assert compute_fingerprint(spec) != before


IMPORTS = {
    "beside": ("import helper_for_a_test\ndef f(row): return row", "helper_for_a_test.py"),
    "from": ("from helper_for_a_test import g as f", "helper_for_a_test.py"),
    "later": ("def f(row):\n    from helper_for_a_test import g\n    return g(row)", "helper_for_a_test.py"),
    "by name": (
        "import importlib\ndef f(row): return importlib.import_module('helper_for_a_test').g(row)",
        "helper_for_a_test.py",
    ),
    "in a package": ("from pack_for_a_test.deep import helper\nf = helper.g", "pack_for_a_test/deep/helper.py"),
    "of a package": ("import pack_for_a_test.deep.helper as h\nf = h.g", "pack_for_a_test/__init__.py"),
    "relative": ("from pack_for_a_test import relative\nf = relative.g", "pack_for_a_test/deep/helper.py"),
    "second": ("import first_for_a_test\nf = first_for_a_test.g", "helper_for_a_test.py"),
}
FILES = {
    "helper_for_a_test.py": "def g(row): return row",
    "first_for_a_test.py": "import transforms_for_a_test\nfrom helper_for_a_test import *",
    "pack_for_a_test/__init__.py": "",
    "pack_for_a_test/deep/helper.py": "def g(row): return row",
    "pack_for_a_test/relative.py": "from .deep.helper import g",
}


@pytest.mark.parametrize(("text", "helper"), IMPORTS.values(), ids=IMPORTS)
def test_a_changed_helper_of_a_transform_or_a_reward_changes_the_fingerprint(tmp_path, module, text, helper):
    module.write_text(text)
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    specs = [
        source(tmp_path, {"n": 2}, transform=f"{module.stem}.f"),
        source(tmp_path, {"n": 2}, rewards=[{"function": f"{module.stem}.f"}]),
    ]
    before = [compute_fingerprint(spec) for spec in specs]
    assert before == [compute_fingerprint(spec) for spec in specs]
    (tmp_path / helper).write_text(FILES[helper] + "\n# changed\n")
    assert all(new != old for new, old in zip(map(compute_fingerprint, specs), before, strict=True))


def test_a_changed_helper_is_imported_anew_and_nothing_is_imported_for_the_fingerprint(tmp_path, module):
    (tmp_path / "helper_for_a_test.py").write_text("def g(row): return row | {'prompt': 'old'}")
    module.write_text("from helper_for_a_test import g as f")
    spec = source(tmp_path, {"prompt": "1?", "ground_truth": "1"}, transform=f"{module.stem}.f")
    compute_fingerprint(spec)
    assert not {"helper_for_a_test", module.stem} & sys.modules.keys()
    assert [row.content["prompt"] for row in open_rows(spec)] == ["old"]
    (tmp_path / "helper_for_a_test.py").write_text("def g(row): return row | {'prompt': 'brand new'}")
    assert [row.content["prompt"] for row in open_rows(spec)] == ["brand new"]


def test_installed_packages_and_the_standard_library_are_not_the_users(tmp_path, module):
    module.write_text(
        "import json, numpy, pydantic.fields, tasks.config.loading, no_such_module_at_all\ndef f(row): return row"
    )
    assert find_user_files(module.stem) == {module.stem: module}


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
    assert make_whole(answer) == wanted


@pytest.mark.parametrize("answer", [r"\sqrt{2}", "x + 1", "1/0", "(1, 2)", "1,23", ""])
def test_an_answer_that_cannot_become_whole_is_set_aside(answer):
    with pytest.raises(UnusableError, match="neither a whole number nor a fraction"):
        make_whole(answer)


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
