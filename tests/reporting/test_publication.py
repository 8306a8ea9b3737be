"""The outputs of a run are complete or not there, and `latest` is the newest complete one."""

from datetime import UTC, datetime, timedelta

import pytest

from tasks.reporting.publication import publish_run

BEGAN = datetime(2026, 11, 23, 9, 30, tzinfo=UTC)


def publish(outputs, text, began=BEGAN):
    with publish_run(outputs, began, text * 8) as (folder, final):
        (folder / "page").write_text(text)
    return final


def test_a_run_has_a_folder_of_its_own_and_latest_is_the_newest(tmp_path):
    first = publish(tmp_path / "out", "a")
    second = publish(tmp_path / "out", "b", BEGAN + timedelta(seconds=1))
    assert first.name == "20261123-093000-aaaaaaaa"
    assert (first / "page").read_text() == "a"
    assert (tmp_path / "out" / "latest").resolve() == second
    assert {path.name for path in (tmp_path / "out").iterdir()} == {first.name, second.name, "latest"}


def test_a_run_that_fails_leaves_nothing_and_the_link_as_it_was(tmp_path):
    first = publish(tmp_path, "a")
    with pytest.raises(IsADirectoryError), publish_run(tmp_path, BEGAN, "b" * 8) as (folder, _):
        folder.write_text("a folder is no file")
    assert {path.name for path in tmp_path.iterdir()} == {first.name, "latest"}
    assert (tmp_path / "latest" / "page").read_text() == "a"


def test_a_run_that_is_published_twice_is_there_once(tmp_path):
    assert publish(tmp_path, "a") == publish(tmp_path, "a")
    assert (tmp_path / "latest" / "page").read_text() == "a"


def test_the_link_moves_with_its_folder(tmp_path):
    publish(tmp_path / "out", "a")
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "latest" / "page").read_text() == "a"


def test_a_folder_called_latest_is_named_and_left_alone(tmp_path):
    (tmp_path / "latest").mkdir()
    with pytest.raises(
        FileExistsError, match=r"latest must be a link to the newest run, but is not a link: move it away"
    ):
        publish(tmp_path, "a")
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]
