"""The folder of static files of the pipeline: bounded, and a failure is a note in it."""

import pytest

from tasks.view import bundle, environment, selection
from tests.view.synthetic import write_run

NAMES = ("evaluation", "evaluation_prompts", "evaluation_rollouts")


@pytest.fixture
def tables(tmp_path):
    run = write_run(tmp_path / "results")
    return {name: run / f"{name}.parquet" for name in NAMES}


@pytest.mark.long
def test_the_folder_has_the_evaluation_and_says_what_it_leaves_out(tables, tmp_path, monkeypatch):
    if not environment.is_made(environment.environment_folder()):
        pytest.skip("the viewer's environment is not made: rlvr view makes it")
    monkeypatch.setattr(selection.select, "__defaults__", (None, None, None, 8))
    bundle.write_bundle(tables, tmp_path / "view")
    assert "python -m http.server" in (tmp_path / "view" / "index.html").read_text()
    assert (tmp_path / "view" / "logs" / "flipped" / "heldout-worse-after-vs-before.eval").is_file()
    first, *others = (tmp_path / "view" / bundle.README).read_text().splitlines()
    assert first.startswith("6 responses in 4 logs; questions whose verdict changed are in 2 further logs.")
    assert [line for line in others if line.startswith("Left out: 6 of 8 responses of after to heldout")]


def test_a_viewer_that_cannot_be_made_is_a_note_and_a_warning(tables, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(environment.VARIABLE, str(tmp_path / "none"))
    bundle.write_bundle(tables, tmp_path / "view")
    assert [path.name for path in (tmp_path / "view").iterdir()] == [bundle.README]
    assert "contains no bin/inspect" in (tmp_path / "view" / bundle.README).read_text()
    assert "the responses are not written" in caplog.text


def test_tables_without_responses_are_a_note(tmp_path):
    bundle.write_bundle({}, tmp_path / "view")
    assert "contains no responses" in (tmp_path / "view" / bundle.README).read_text()
