"""If `outputs/latest` is a part of the pipeline, errors name the newest run that has what is missing."""

import re

import pytest
from click.testing import CliRunner
from flytekit.clis.sdk_in_container.pyflyte import main

from tasks.commands.group import rlvr
from tasks.evaluation.runs import read_table
from tasks.failures import MistakeError
from tasks.reporting.trace import find, find_row
from tasks.storage.run_folders import check_run, make_hint


@pytest.fixture
def outputs(tmp_path):
    """Two whole runs, and a newer part of the pipeline that `latest` leads to."""
    for name in ("20261126-101500-3f2a", "20261127-090000-aaaa"):
        (tmp_path / name).mkdir()
        for table in ("evaluation_prompts", "prompts", "mixture"):
            (tmp_path / name / f"{table}.parquet").touch()
    (tmp_path / "20261128-080000-bbbb").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "latest").symlink_to("20261128-080000-bbbb")
    return tmp_path


NEWEST = r"the newest run with it is \S*20261127-090000-aaaa"


def test_tables_of_a_whole_run_are_looked_for_beside_a_part_of_the_pipeline(outputs):
    with pytest.raises(MistakeError, match=rf"latest contains no evaluation_prompts\.parquet: .*{NEWEST}"):
        read_table(outputs / "latest", "evaluation_prompts")
    with pytest.raises(MistakeError, match=rf"latest contains no prompts\.parquet: .*{NEWEST}"):
        find(outputs / "latest", "abcd1234")
    with pytest.raises(MistakeError, match=NEWEST):
        find_row(outputs / "latest", "mine", 3)


SENTENCES = {
    "view": ["view"],
    "tokens": ["tokens", "--step", "0"],
    "show": ["show"],
    "trace": ["trace", "abcd1234"],
    "compare": ["compare", "a", "b"],
}


@pytest.mark.parametrize("arguments", SENTENCES.values(), ids=SENTENCES)
def test_where_there_are_no_runs_one_sentence_says_so(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLVR_OUTPUTS", raising=False)
    error = CliRunner().invoke(rlvr, arguments).exception
    assert isinstance(error, MistakeError)
    assert f"no such folder, and no runs in {tmp_path / 'outputs'}: go to the folder of your run, or name it" in str(
        error
    )


def test_a_run_that_does_not_exist_is_answered_with_the_newest(outputs):
    with pytest.raises(MistakeError, match=r"20261126-101501-3f2a: no such folder; the newest run is .*-080000-bbbb$"):
        check_run(outputs / "20261126-101501-3f2a")
    check_run(outputs / "latest")


def test_where_no_run_has_it_there_is_no_hint(outputs, tmp_path):
    assert make_hint(outputs / "latest", "policy") == ""
    assert make_hint(tmp_path / "nowhere" / "latest", "policy") == ""


@pytest.mark.long
def test_an_input_that_latest_lacks_names_the_run_that_has_it(outputs):
    command = ["run", "workflows/training.py", "train", "--mixture", str(outputs / "latest" / "mixture.parquet")]
    done = CliRunner().invoke(main, command, env={"COLUMNS": "1000"})
    assert done.exit_code == 1
    assert re.search(
        rf"Error: --mixture: there is no file \S*latest/mixture\.parquet; {NEWEST}/?$", done.output, re.MULTILINE
    )


@pytest.mark.parametrize(("option", "kind"), [("--model", "folder"), ("--mixture", "file")])
def test_an_input_that_does_not_exist_is_one_sentence_without_names_of_flytekits_types(tmp_path, option, kind):
    (tmp_path / "model").mkdir()
    (tmp_path / "mixture.parquet").touch()
    given = {"--model": str(tmp_path / "model"), "--mixture": str(tmp_path / "mixture.parquet")}
    given[option] = str(tmp_path / "nope")
    words = [word for pair in given.items() for word in pair]
    done = CliRunner().invoke(main, ["run", "workflows/training.py", "train", *words], env={"COLUMNS": "1000"})
    assert done.exit_code == 1
    [sentence] = [line for line in done.output.splitlines() if "Error" in line]
    assert f"{option}: there is no {kind} {tmp_path / 'nope'}" in sentence
    assert "flyte" not in sentence.replace(str(tmp_path), "")
