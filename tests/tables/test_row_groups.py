"""The same rows give the same row groups, and none holds too much text."""

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.tables import row_groups
from tasks.tables.row_groups import split_row_groups as groups_of

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("turns", pa.list_(pa.struct([("role", pa.string()), ("content", pa.large_string())]))),
        ("note", pa.string()),
        ("count", pa.int64()),
    ]
)


def table(*sizes):
    rows = [
        {"id": "i", "turns": [{"role": "u", "content": "x" * size}], "note": None if size % 2 else "n", "count": size}
        for size in sizes
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(row_groups, "ROW_GROUP", 4)
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", 100)


def sizes_of(tables):
    return [group.column("count").to_pylist() for group in groups_of(tables, SCHEMA)]


def test_a_group_ends_by_rows_or_by_text():
    assert sizes_of([table(1, 1, 1, 1, 1, 60, 60, 200, 5)]) == [[1, 1, 1, 1], [1, 60, 60], [200], [5]]


def test_no_rows_are_one_empty_group():
    assert sizes_of([]) == sizes_of([table()]) == [[]]


@given(st.lists(st.integers(0, 120), max_size=30), st.lists(st.integers(0, 30), max_size=4))
def test_groups_do_not_depend_on_how_the_rows_come(sizes, cuts):
    bounds = [0, *sorted(min(cut, len(sizes)) for cut in cuts), len(sizes)]
    parts = [table(*sizes[start:end]) for start, end in itertools.pairwise(bounds)]
    assert sizes_of(parts) == sizes_of([table(*sizes)])
    assert [size for group in sizes_of(parts) for size in group] == sizes
