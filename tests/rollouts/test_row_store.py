"""What was paid for is found again, whoever wrote it and however it ended."""

import subprocess
import sys

import fsspec
import pyarrow as pa
import pytest

from tasks.rollouts import row_store
from tasks.rollouts.row_store import DamagedSegmentError, RowStore

SCHEMA = pa.schema([("key", pa.string()), ("sample", pa.int32()), ("text", pa.string())])


def row(key, sample, text="x"):
    return {"key": key, "sample": sample, "text": text}


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path):
    """Opens the same place anew each time."""
    filesystem = fsspec.filesystem(request.param, skip_instance_cache=True)
    return lambda: RowStore(filesystem, str(tmp_path / "rows"), SCHEMA)


def test_rows_are_found_by_another_process_in_the_order_that_it_asks_for(store):
    first = store()
    for number in range(600):  # more than a row group
        first.append(row(f"k{number % 100}", number // 100, f"text {number}"))
    first.flush()
    second = store()
    second.find(["k7", "k3", "unknown"])
    assert ("k7", 5) in second
    assert ("k8", 0) not in second
    assert second.read([("k7", 5), ("k3", 0), ("k7", 0)])["text"].to_pylist() == ["text 507", "text 3", "text 7"]
    assert first.read([("k99", 5)])["text"].to_pylist() == ["text 599"]


def test_an_empty_place_holds_nothing_and_a_flush_without_rows_writes_nothing(store):
    empty = store()
    empty.find(["k"])
    empty.flush()
    assert ("k", 0) not in empty
    assert empty.read([]).num_rows == 0


def test_of_a_row_that_two_made_the_first_counts_for_everyone(store):
    for text in ("first", "second"):
        writer = store()
        writer.append(row("k", 0, text))
        writer.flush()
    reader = store()
    reader.find(["k"])
    assert reader.read([("k", 0)])["text"].to_pylist() == ["first"]


def test_a_temporary_row_counts_for_its_writer_alone(tmp_path):
    filesystem, schema = fsspec.filesystem("file"), SCHEMA.append(pa.field("temporary", pa.bool_()))

    def opened():
        return RowStore(filesystem, str(tmp_path / "rows"), schema, temporary="temporary")

    first, second, third = opened(), opened(), opened()
    first.append({**row("k", 0, "failed"), "temporary": True})
    first.flush()
    assert first.read([("k", 0)])["text"].to_pylist() == ["failed"]
    second.find(["k"])
    assert ("k", 0) not in second
    second.append({**row("k", 0, "fine"), "temporary": False})
    second.flush()
    third.find(["k"])
    assert third.read([("k", 0)])["text"].to_pylist() == ["fine"]


def test_a_segment_is_due_by_rows_by_text_and_by_time(store, monkeypatch):
    waiting = store()
    assert not waiting.due
    waiting.append(row("k", 0, "long" * 10))
    assert not waiting.due
    for name, value in (("SEGMENT_ROWS", 1), ("SEGMENT_CHARS", 10), ("SEGMENT_SECONDS", 0.0)):
        with monkeypatch.context() as patched:
            patched.setattr(row_store, name, value)
            assert waiting.due, name


@pytest.mark.parametrize(
    "harm", [lambda content: content[:-10], lambda content: content[:200] + b"\0" * 40 + content[240:]]
)
def test_a_damaged_segment_is_named_and_may_be_deleted(tmp_path, harm):
    folder = tmp_path / "rows"
    writer = RowStore(fsspec.filesystem("file"), str(folder), SCHEMA)
    for number in range(100):
        writer.append(row("k", number, f"{number}" * 50))
    writer.flush()
    (segment,) = folder.iterdir()
    segment.write_bytes(harm(segment.read_bytes()))
    reader = RowStore(fsspec.filesystem("file"), str(folder), SCHEMA)

    def read():
        reader.find(["k"])
        reader.read([("k", number) for number in range(100)])

    with pytest.raises(DamagedSegmentError, match=rf"{segment.name} is damaged .*; delete it"):
        read()


@pytest.mark.long
def test_a_writer_that_is_killed_leaves_whole_segments(tmp_path):
    program = f"""
import fsspec, os, signal, sys
from tests.rollouts.test_row_store import RowStore, SCHEMA, row
store = RowStore(fsspec.filesystem("file"), {str(tmp_path / "rows")!r}, SCHEMA)
pipe = store._fs.pipe_file
def half(name, content):
    pipe(name, content[:len(content) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
store.append(row("k", 0)); store.flush()
store._fs.pipe_file = half
store.append(row("k", 1)); store.flush()
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    reader = RowStore(fsspec.filesystem("file"), str(tmp_path / "rows"), SCHEMA)
    reader.find(["k"])
    assert ("k", 0) in reader
    assert ("k", 1) not in reader


def test_a_full_disk_is_the_storages_own_error_and_no_row_is_lost_silently(tmp_path):
    writer = RowStore(fsspec.filesystem("file"), "/dev/full/rows", SCHEMA)
    writer.append(row("k", 0))
    with pytest.raises(OSError, match="/dev/full"):
        writer.flush()
