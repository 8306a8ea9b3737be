"""How many rows a source has, without reading them as rows."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.sourcing import rows
from tasks.sourcing.spec import SourceSpec


def source(loader, **options):
    given = {"name": "a", "domain": "math", "verifier": "math", "loader": loader}
    return SourceSpec.model_validate(given | options)


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": 1}\n\n{"prompt": 2}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": 3}')
    return {"kind": "jsonl", "path": str(tmp_path / "*.jsonl")}


def test_lines_of_all_files_are_counted(lines):
    assert rows.count(source(lines)) == 3
    assert rows.count(source(lines, limit=2)) == 2
    assert rows.count(source(lines, limit=9)) == 3


def test_parquet_says_its_rows_itself(tmp_path):
    pq.write_table(pa.table({"prompt": range(5)}), tmp_path / "a.parquet")
    assert rows.count(source({"kind": "parquet", "path": str(tmp_path / "a.parquet")})) == 5


def test_a_generator_makes_as_many_as_it_is_asked_for():
    assert rows.count(source({"kind": "reasoning_gym", "dataset": "products", "size": 44})) == 44


def test_of_what_would_take_a_download_or_long_only_the_limit_is_known(lines, monkeypatch):
    hub = {"kind": "huggingface", "dataset": "a/set", "revision": "0" * 40}
    assert rows.count(source(hub)) is None
    assert rows.count(source(hub, limit=7)) == 7
    monkeypatch.setattr(rows, "COUNTED_BYTES", 10)
    assert rows.count(source(lines)) is None
