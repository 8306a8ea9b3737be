"""Tables are checked where they are written and where they are read."""

import hashlib
import json

import duckdb
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset

from tasks.tables import parquet, schemas
from tasks.tables.content_digest import file_digest
from tasks.tables.parquet import (
    TableError,
    build_table,
    copy_head,
    mapped,
    read_metadata,
    read_table,
    take_rows,
    write_table,
)
from tasks.tables.schemas import PROMPTS, messages_key, prompt_id, prompt_id_of_texts

ROW = {
    "prompt_id": "a" * 32,
    "domain": "math",
    "source": "sums",
    "messages": [{"role": "user", "content": "1+1?"}],
    "verifier": "math",
    "ground_truth": '"2"',
    "metadata": "{}",
    "cluster": None,
    "environment": None,
    "row": 0,
}


def test_a_table_and_its_lineage_come_back_as_they_were_written(tmp_path):
    table = build_table([ROW], PROMPTS, "here")
    path = write_table(tmp_path / "t.parquet", table, PROMPTS, {"seed": 3, "sources": ["x"]})
    assert read_table(path, PROMPTS).to_pylist() == [ROW]
    assert read_metadata(path) == {"seed": 3, "sources": ["x"]}


def test_equal_tables_give_equal_bytes(tmp_path):
    table = build_table([ROW] * 3, PROMPTS, "here")
    first = write_table(tmp_path / "a.parquet", table, PROMPTS, {"b": 1, "a": 2})
    second = write_table(tmp_path / "b.parquet", table, PROMPTS, {"a": 2, "b": 1})
    assert first.read_bytes() == second.read_bytes()


def test_an_empty_table_is_a_table(tmp_path):
    path = write_table(tmp_path / "t.parquet", build_table([], PROMPTS, "here"), PROMPTS)
    assert read_table(path, PROMPTS).num_rows == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW, "prompt_id": None}, "'prompt_id' is null in row 0"),
        ({**ROW, "messages": 3}, "'messages'"),
        ({key: value for key, value in ROW.items() if key != "verifier"}, "'verifier'"),
    ],
)
def test_a_bad_row_is_one_error_that_names_the_column(row, message):
    with pytest.raises(TableError, match=message):
        build_table([row], PROMPTS, "here")


def test_a_file_that_is_not_such_a_table_is_one_error_that_names_it(tmp_path):
    path = tmp_path / "t.parquet"
    with pytest.raises(TableError, match="no such file"):
        read_table(path, PROMPTS)
    path.write_bytes(b"not parquet")
    with pytest.raises(TableError, match=r"t\.parquet: not a readable Parquet file"):
        read_table(path, PROMPTS)
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(TableError, match="missing columns"):
        read_table(path, PROMPTS)


def test_a_table_of_an_older_version_has_nulls_in_the_columns_that_came_later(tmp_path):
    later = pa.schema([*PROMPTS, pa.field("note", pa.string())])
    path = write_table(tmp_path / "t.parquet", build_table([ROW], PROMPTS, "here"), PROMPTS)
    assert read_table(path, later).to_pylist() == [{**ROW, "note": None}]


def test_a_table_of_a_newer_version_is_refused_in_one_sentence(tmp_path, monkeypatch):
    table = build_table([ROW], PROMPTS, "here")
    monkeypatch.setattr(parquet, "SCHEMA_VERSION", 99)
    path = write_table(tmp_path / "t.parquet", table, PROMPTS)
    monkeypatch.undo()
    with pytest.raises(TableError, match=r"t\.parquet: its schema is of version 99, and this code reads"):
        read_table(path, PROMPTS)


@pytest.mark.long
def test_a_row_of_50_megabytes_is_written_and_read(tmp_path):
    row = {**ROW, "metadata": '"' + "x" * 50_000_000 + '"'}
    path = write_table(tmp_path / "t.parquet", build_table([ROW, row, ROW], PROMPTS, "here"), PROMPTS)
    assert pq.ParquetFile(path).num_row_groups == 1
    assert [len(each["metadata"]) for each in read_table(path, PROMPTS).to_pylist()] == [2, 50_000_002, 2]


TABLES = {
    name: value for name, value in vars(schemas).items() if isinstance(value, pa.Schema) and name not in ("RESPONSES",)
}


def example(kind, text="text"):
    """A value of this type."""
    if pa.types.is_list(kind):
        return [example(kind.value_type, text)] * 2
    if pa.types.is_struct(kind):
        return {field.name: example(field.type, text) for field in kind}
    if pa.types.is_boolean(kind):
        return True
    return text if pa.types.is_string(kind) or pa.types.is_large_string(kind) else 1


@pytest.mark.long
@pytest.mark.parametrize("name", TABLES)
def test_datasets_pandas_polars_and_duckdb_read_every_table(tmp_path, name):
    schema = TABLES[name]
    rows = [{field.name: example(field.type) for field in schema}] * 3
    path = str(write_table(tmp_path / "t.parquet", build_table(rows, schema, "here"), schema, {"seed": 1}))
    assert load_dataset("parquet", data_files=path, split="train", cache_dir=str(tmp_path)).to_list() == rows
    assert list(pd.read_parquet(path).columns) == schema.names
    assert polars.read_parquet(path).to_dicts() == rows
    assert duckdb.sql(f"SELECT * FROM '{path}'").to_arrow_table().to_pylist() == rows  # noqa: S608


def test_a_prompts_identity_is_its_messages_verifier_and_ground_truth():
    messages = [{"role": "user", "content": "1+1?"}]
    base = prompt_id(messages, "math", "2")
    assert base == prompt_id([{"content": "1+1?", "role": "user"}], "math", "2")
    assert (
        len({base, prompt_id(messages, "math", "3"), prompt_id(messages, "code", "2"), prompt_id([], "math", "2")}) == 4
    )


@pytest.mark.parametrize("environment", [None, '{"path":"a.b"}'])
@pytest.mark.parametrize("truth", ["2", ["1/2", "é\n\u2028"], {"tests": ['a == "b"'], "n": 1.5}, None])
def test_a_prompts_identity_is_the_hash_of_its_parts_each_after_its_length(truth, environment):
    messages = [{"role": "system", "content": 'Say "é"\n\t\x7f'}, {"role": "user", "content": "\\\u2028漢?"}]
    encoded = json.dumps(truth, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    turns = '6:system10:Say "é"\n\t\x7f4:user4:\\\u2028漢?'
    text = f"{turns}4:math{len(encoded)}:{encoded}" + (f"{len(environment)}:{environment}" if environment else "")
    expected = hashlib.sha256(text.encode()).hexdigest()[:32]
    assert prompt_id(messages, "math", truth, environment) == expected
    assert prompt_id_of_texts(messages, "math", encoded, environment) == expected
    assert messages_key(messages) == hashlib.sha256(turns.encode()).hexdigest()[:32]


def test_no_two_prompts_have_the_parts_of_one():
    ids = [
        prompt_id([{"role": "user", "content": content}, *more], verifier, None, environment)
        for content, more, verifier, environment in (
            ("a", [], "math", None),
            ("a4:math", [], "", None),
            ("", [], "a4:math", None),
            ("a", [{"role": "math", "content": "null"}], "math", None),
            ("a", [], "math", "null"),
            ("a", [], "math", ""),
        )
    ]
    assert len(set(ids)) == len(ids)


def test_a_folders_digest_sees_content_and_names_and_nothing_else(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in ("a", "b"):
        (tmp_path / folder / "x").write_text("1")
    assert file_digest(tmp_path / "a") == file_digest(tmp_path / "b")
    (tmp_path / "b" / "x").rename(tmp_path / "b" / "y")
    assert file_digest(tmp_path / "a") != file_digest(tmp_path / "b")


@pytest.mark.parametrize("name", [*TABLES, "RESPONSES"])
@pytest.mark.parametrize("text", ["half \ud83d", "\udf78\ud83c", "a\0b", "\ufffe\u202e", "x" * 10_000_000])
def test_text_of_a_model_is_stored_wherever_a_table_has_text(name, text, tmp_path):
    schema = getattr(schemas, name)
    row = {column.name: example(column.type, text) for column in schema}
    table = build_table([row], schema, "here")
    stored = read_table(write_table(tmp_path / "t.parquet", table, schema), schema)
    first = next(column.name for column in schema if column.type == pa.string())
    assert stored[first].to_pylist() == [parquet.storable(text)]


def long_rows(count):
    """Parts of a table of prompts of 10,000 characters, `count` in all."""
    for start in range(0, count, 500):
        rows = [
            ROW | {"row": row, "messages": [{"role": "user", "content": f"{row} " * 2000}]}
            for row in range(start, start + 500)
        ]
        yield build_table(rows, PROMPTS, "here")


def test_the_rows_of_a_mapped_table_are_not_in_memory(monkeypatch):
    before = pa.total_allocated_bytes()
    table = mapped(long_rows(3000), PROMPTS)
    assert table.nbytes > 20_000_000
    assert pa.total_allocated_bytes() - before < 2_000_000
    monkeypatch.setattr(parquet, "PART_BYTES", 1_000_000)
    rows = np.random.default_rng(0).integers(0, 3000, 4000)
    found, most = [], 0
    for part in take_rows(table, rows):
        found += part.column("row").to_pylist()
        most = max(most, pa.total_allocated_bytes() - before)
    assert found == rows.tolist()
    assert most < 5_000_000
    assert table.slice(2999).to_pylist() == list(long_rows(3000))[-1].slice(499).to_pylist()


def test_a_mapped_table_may_be_empty_and_has_the_columns_asked_for():
    table = mapped([], PROMPTS)
    assert (table.num_rows, table.schema) == (0, PROMPTS)
    assert list(take_rows(table, np.empty(0, np.int64))) == []
    wider = build_table([ROW], PROMPTS, "here").append_column("more", pa.array([1]))
    assert mapped([wider], PROMPTS).to_pylist() == [ROW]


def test_copied_first_rows_do_not_keep_the_others_in_memory():
    before = pa.total_allocated_bytes()
    heads = [copy_head(part, 2) for part in long_rows(2000)]
    assert [head.column("row").to_pylist() for head in heads] == [[0, 1], [500, 501], [1000, 1001], [1500, 1501]]
    assert pa.total_allocated_bytes() - before < 1_000_000
    assert copy_head(PROMPTS.empty_table(), 2).num_rows == 0
