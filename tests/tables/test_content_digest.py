"""Digests are of content, and are found without reading it where a writer of this project left them."""

import json
import time

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.tables.content_digest import (
    CLAIM,
    MANIFEST,
    SETTLED,
    ContentError,
    _read_pages_digest,
    _read_sha256,
    check_pages,
    file_digest,
    read_claimed_digest,
    seal,
    write_parquet,
)
from tasks.tables.parquet import TableError, read_table
from tasks.tables.schemas import PROMPTS

TABLE = pa.table({"name": ["a", "b", None], "score": [0.5, 1.0, 0.0]})


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "t.parquet"
    write_parquet(path, [TABLE], TABLE.schema)
    return path


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    (folder / "weights").write_text("0123")
    (folder / "inner" / "config").write_text("{}")
    return folder


class Elsewhere:
    """A copy of a file or folder on a filesystem that is not this machine's."""

    def __init__(self, path):
        self.files = fsspec.filesystem("memory")
        self.address = f"memory://bucket/{path.name}"
        if self.files.exists(self.address):
            self.files.rm(self.address, recursive=True)
        self.files.put(str(path), self.address, recursive=True)

    def claimed(self):
        return read_claimed_digest(self.files, self.address)


@pytest.fixture
def elsewhere():
    yield Elsewhere
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


# Tables


def test_a_tables_digest_is_of_its_rows_and_not_of_what_it_was_made_from(tmp_path, written):
    other = tmp_path / "other.parquet"
    write_parquet(other, [TABLE], TABLE.schema.with_metadata({"sources": "x"}))
    assert file_digest(other) == file_digest(written)
    for changed in (TABLE.slice(0, 2), TABLE.rename_columns(["name", "rate"]), TABLE.slice(0, 0)):
        write_parquet(other, [changed], changed.schema)
        assert file_digest(other) != file_digest(written)


def test_a_remote_tables_digest_is_read_from_its_footer(written, elsewhere):
    assert elsewhere(written).claimed() == check_pages(written) == file_digest(written)


def test_a_table_of_somebody_elses_has_no_claim_and_counts_by_its_bytes(tmp_path, elsewhere):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path in paths:
        pq.write_table(TABLE, path)
    assert elsewhere(paths[0]).claimed() is None
    assert file_digest(paths[0]) == file_digest(paths[1])
    pq.write_table(TABLE, paths[1], compression="zstd")
    assert file_digest(paths[0]) != file_digest(paths[1])


def with_entries_of(path, table):
    """`table` in a file with the footer's entries of the one at `path`, as a careful program of a user's writes it."""
    entries = pq.read_metadata(path).metadata
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({CLAIM: entries[CLAIM.encode()]})
    return path


def test_a_claim_that_was_copied_to_another_table_is_none_of_it(written, elsewhere):
    with_entries_of(written, TABLE.slice(1))
    assert elsewhere(written).claimed() is None
    assert check_pages(written) is None
    assert read_table(written, TABLE.schema).num_rows == 2


def test_a_damaged_table_is_one_error_where_it_is_read(written):
    content = bytearray(written.read_bytes())
    content[40] ^= 1  # in some page
    written.write_bytes(bytes(content))
    for reads in (file_digest, check_pages):
        with pytest.raises(ContentError, match=r"t\.parquet: its rows are not those that the digest in its footer"):
            reads(written)
    with pytest.raises(TableError, match=r"t\.parquet: "):
        read_table(written, PROMPTS)


@pytest.mark.parametrize("entry", ["{", "3", '{"sha256": "x"}'])
def test_a_malformed_claim_is_one_error(written, entry, elsewhere):
    with pq.ParquetWriter(written, TABLE.schema) as writer:
        writer.write_table(TABLE)
        writer.add_key_value_metadata({CLAIM: entry})
    for asks in (lambda: file_digest(written), elsewhere(written).claimed):
        with pytest.raises(ContentError, match=r"t\.parquet: the entry 'content' of the footer is not"):
            asks()


def test_half_a_table_is_one_error(written, elsewhere):
    written.write_bytes(written.read_bytes()[:-10])
    for asks in (lambda: file_digest(written), elsewhere(written).claimed):
        with pytest.raises(ContentError, match=r"t\.parquet: not a readable Parquet file"):
            asks()


def test_other_files_count_by_their_bytes(tmp_path, elsewhere):
    for name in ("a", "b"):
        (tmp_path / name).write_text("PAR")
    assert file_digest(tmp_path / "a") == file_digest(str(tmp_path / "b"))
    assert elsewhere(tmp_path / "a").claimed() is None
    (tmp_path / "b").write_text("RAP")
    assert file_digest(tmp_path / "a") != file_digest(tmp_path / "b")


# Folders


def test_a_folder_has_the_same_digest_with_its_manifest_and_without_and_elsewhere(model, elsewhere):
    before = file_digest(model)
    assert elsewhere(model).claimed() is None
    assert seal(model) == model
    assert file_digest(model) == before
    assert elsewhere(model).claimed() == before
    entry = json.loads((model / MANIFEST).read_text())["weights"]
    assert entry["bytes"] == 4
    assert len(entry["sha256"]) == 64


def test_a_manifest_of_other_files_is_one_error(model, elsewhere):
    seal(model)
    (model / "weights").write_text("3210")
    with pytest.raises(ContentError, match=r"model: sha256.json was written for other files; delete it"):
        file_digest(model)
    (model / "weights").write_text("01234")
    with pytest.raises(ContentError, match=r"model: sha256.json was written for other files; delete it"):
        elsewhere(model).claimed()
    seal(model)
    assert file_digest(model) == elsewhere(model).claimed()


@pytest.mark.parametrize("text", ["{", "[]", '{"weights": 4}'])
def test_a_malformed_manifest_is_one_error(model, text, elsewhere):
    (model / MANIFEST).write_text(text)
    for asks in (lambda: file_digest(model), elsewhere(model).claimed):
        with pytest.raises(ContentError, match="model"):
            asks()


def settled(path):
    """Wait until the file at `path` has not changed for so long that its digest is kept."""
    while time.time() - path.stat().st_ctime < SETTLED:
        time.sleep(SETTLED / 5)


def test_weights_are_read_once_a_process_for_as_long_as_they_stay_as_they_are(model):
    seal(model)
    settled(model / MANIFEST)
    before, reads = file_digest(model), _read_sha256.cache_info().misses
    assert file_digest(model) == before
    assert _read_sha256.cache_info().misses == reads
    (model / "weights").write_text("012345")
    assert file_digest(seal(model)) != before
    assert _read_sha256.cache_info().misses > reads


def test_a_tables_pages_are_read_once_a_process_and_again_after_each_change(written):
    settled(written)
    check_pages(written)
    reads = _read_pages_digest.cache_info().misses
    check_pages(written)
    assert _read_pages_digest.cache_info().misses == reads
    content = bytearray(written.read_bytes())
    for _ in range(20):  # changes within a tick of the file system's clock leave its times as they are
        written.write_bytes(bytes(content))
        check_pages(written)
        content[40] ^= 1
        written.write_bytes(bytes(content))
        with pytest.raises(ContentError):
            check_pages(written)
        content[40] ^= 1
