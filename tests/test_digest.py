"""A stage's cache version follows the code that makes its outputs, and nothing else."""

import pytest

from tasks import digest


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A little project whose `stage` reaches `helper` in a function, `named` by a string, and not `stranger`."""
    package = tmp_path / "tasks"
    package.mkdir()
    files = {
        "__init__.py": "",
        "stage.py": "def run():\n    from tasks import helper\n    return helper.f, 'tasks.named'\n",
        "helper.py": "def f():\n    return 1\n",
        "named.py": "x = 1\n",
        "stranger.py": "y = 1\n",
    }
    for name, text in files.items():
        (package / name).write_text(text)
    monkeypatch.setattr(digest, "ROOT", tmp_path)

    def version() -> str:
        digest.code_digest.cache_clear()
        digest._tree.cache_clear()
        return digest.code_digest("tasks.stage")

    yield package, version
    digest.code_digest.cache_clear()
    digest._tree.cache_clear()


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
    (package / "helper.py").write_text('"""Says so."""\n\n\n# one\ndef f():\n    """Returns 1."""\n    return (1)\n')
    assert version() == before


def test_data_files_beside_a_module_count(project):
    package, version = project
    before = version()
    (package / "page.html.j2").write_text("hello")
    assert version() != before


def test_the_stages_reach_what_they_run():
    assert "tasks.verifiers.mathematics" in digest.reachable("tasks.difficulty.task")
    assert "tasks.training.objective.loss" in digest.reachable("tasks.training.task")
    assert "tasks.training.run" not in digest.reachable("tasks.mixing.task")
    assert "tasks.reporting.page" not in digest.reachable("tasks.training.task")
