"""What was read from modules is read once, by the same code, whatever happens to the file."""

import importlib.util
import json
from pathlib import Path

import pytest

from tasks.lineage import parsed_modules
from tasks.lineage.parsed_modules import ParsedModules


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """The file of a module whose results are kept."""
    monkeypatch.setattr("sys.pycache_prefix", None)
    path = tmp_path / "reader.py"
    path.write_text("version = 1")
    return path


def file_of(reader: Path) -> Path:
    [path] = reader.parent.glob("__pycache__/*")
    return path


def test_another_process_finds_what_was_saved_next_to_the_bytecode(reader):
    modules = ParsedModules(reader)
    assert modules.get("a") is None
    modules.add("a", [1, ["b"]])
    modules.save()
    assert ParsedModules(reader).get("a") == [1, ["b"]]
    assert file_of(reader).parent == Path(importlib.util.cache_from_source(str(reader))).parent


def test_two_processes_add_to_the_same_file(reader):
    one, other = ParsedModules(reader), ParsedModules(reader)
    one.add("a", 1)
    other.add("b", 2)
    one.save()
    other.save()
    assert [ParsedModules(reader).get(key) for key in "ab"] == [1, 2]


def test_other_code_starts_again(reader):
    modules = ParsedModules(reader)
    modules.add("a", 1)
    modules.save()
    reader.write_text("version = 2")
    assert ParsedModules(reader).get("a") is None


@pytest.mark.parametrize("text", ["", "[", "[]", "{}", '{"code": 1, "modules": 2}', "\0"])
def test_a_damaged_file_is_replaced(reader, text):
    modules = ParsedModules(reader)
    modules.add("a", 1)
    modules.save()
    file_of(reader).write_text(text)
    again = ParsedModules(reader)
    assert again.get("a") is None
    again.add("a", 2)
    again.save()
    assert ParsedModules(reader).get("a") == 2


def test_the_file_does_not_grow_without_end(reader, monkeypatch):
    monkeypatch.setattr(parsed_modules, "MOST", 2)
    for key in "abc":
        modules = ParsedModules(reader)
        modules.add(key, 1)
        modules.save()
    assert list(json.loads(file_of(reader).read_text())["modules"]) == ["c"]


def test_a_folder_that_cannot_be_written_changes_nothing(reader):
    (reader.parent / "__pycache__").write_text("a file instead of the folder")
    modules = ParsedModules(reader)
    modules.add("a", 1)
    modules.save()
    assert modules.get("a") == 1
