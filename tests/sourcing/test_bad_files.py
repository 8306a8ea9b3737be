"""Files as they come: what is wrong with a row costs that row, what is wrong with a file is one error."""

import json
import resource
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.config.loading import SpecError
from tasks.sourcing import rows
from tasks.sourcing.prompts import build_prompts
from tasks.sourcing.spec import SourceSpec
from tasks.tables.parquet import TableError, read_table
from tasks.tables.schemas import PROMPTS


def source(path, kind="jsonl"):
    return SourceSpec.model_validate(
        {
            "name": "mine",
            "domain": "math",
            "verifier": "math",
            "loader": {"kind": kind, "path": str(path)},
            "columns": {"prompt": "q", "ground_truth": "a"},
        }
    )


def line(number):
    return json.dumps({"q": f"{number}+1?", "a": str(number + 1)}).encode()


def read(path, content):
    path.write_bytes(content)
    made = build_prompts(source(path), 1000)
    return made.prompts.num_rows, [(row["row"], row["kind"], row["reason"]) for row in made.set_aside.to_pylist()]


@pytest.mark.parametrize(
    "content",
    [b"\xef\xbb\xbf" + b"\n".join(map(line, range(3))), b"\r\n".join(map(line, range(3))) + b"\r\n"],
    ids=["byte order mark", "Windows line ends"],
)
def test_marks_of_other_systems_cost_no_row(tmp_path, content):
    assert read(tmp_path / "f.jsonl", content) == (3, [])


@pytest.mark.long
@pytest.mark.parametrize(
    ("bad", "kind", "reason"),
    [
        (b'{"q": "\xff\xfe?", "a": "1"}', "malformed", "not valid JSON: 'utf-8' codec can't decode byte 0xff"),
        (b'{"q": "2?", "q": "3?", "a": "1"}', "malformed", "not valid JSON: key 'q' occurs twice"),
        (b'{"q": "half', "malformed", "not valid JSON: "),
        (b"[1, 2]", "malformed", "a JSON list, not an object"),
        (b'{"q": 1, "a": "1"}', "unusable", "the prompt is neither text nor a list of messages"),
        (
            json.dumps({"q": "x" * 50_000_000, "a": "1"}).encode(),
            "length",
            "prompt of 50000000 characters, more than max_prompt_chars 1000",
        ),
    ],
    ids=["invalid UTF-8", "a key twice", "cut short", "no object", "a wrong type", "50 MB"],
)
def test_a_bad_row_costs_itself_alone(tmp_path, bad, kind, reason):
    kept, [(row, found, said)] = read(tmp_path / "f.jsonl", b"\n".join([line(0), bad, line(2)]))
    assert (kept, row, found) == (2, 1, kind)
    assert said.startswith(reason)


def test_a_truncated_file_and_a_column_that_occurs_twice_are_errors_that_name_the_file(tmp_path):
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"q": ["1+1?"], "a": ["2"]}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SpecError, match=r"source 'mine': loader\.path: .*f\.parquet cannot be read: "):
        build_prompts(source(path, "parquet"), 1000)
    columns = [pa.array(["1?"]), pa.array(["2?"]), pa.array(["1"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["q", "q", "a"]), path)
    with pytest.raises(SpecError, match=r"f\.parquet cannot be read: column 'q' occurs twice"):
        build_prompts(source(path, "parquet"), 1000)


@pytest.mark.complete
@pytest.mark.long
def test_ten_thousand_files_are_read_in_the_order_of_their_names(tmp_path):
    for number in range(10_000):
        (tmp_path / f"{number:05}.jsonl").write_bytes(line(number))
    made = build_prompts(source(tmp_path / "*.jsonl"), 1000)
    assert [row[0]["content"] for row in made.prompts["messages"].to_pylist()] == [f"{n}+1?" for n in range(10_000)]


def test_a_source_that_dies_half_way_is_an_error_and_no_shorter_table(tmp_path, monkeypatch):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b"\n".join(map(line, range(1000))))
    parse, parsed = rows._parse_row, []

    def dying(text):
        parsed.append(text)
        if len(parsed) > 900:
            raise OSError("connection reset by peer")
        return parse(text)

    monkeypatch.setattr(rows, "_parse_row", dying)
    with pytest.raises(SpecError, match=r"f\.jsonl cannot be read: connection reset by peer"):
        build_prompts(source(path), 1000)


@pytest.mark.long
def test_a_disk_that_fills_in_mid_write_leaves_nothing_that_is_taken_for_a_table(tmp_path):
    path = tmp_path / "t.parquet"
    program = f"""
import random
from tests.rollouts.test_sample_and_score import table
from tasks.tables.schemas import PROMPTS
from tasks.tables.parquet import write_table
write_table({str(path)!r}, table(*(str(random.random()) * 50 for _ in range(2000))), PROMPTS)
"""

    def nearly_full():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run(
        [sys.executable, "-B", "-c", program], preexec_fn=nearly_full, capture_output=True, text=True, check=False
    )
    assert "Errno 27" in done.stderr, done.stderr[-500:]
    with pytest.raises(TableError, match=r"t\.parquet: not a readable Parquet file"):
        read_table(path, PROMPTS)


@pytest.mark.parametrize("content", [b"q,a\n1+1?,2\n", b'[{"q": "1+1?", "a": "2"}]\n'], ids=["CSV", "JSON list"])
def test_a_file_of_another_format_is_named_with_the_loader_that_reads_it(tmp_path, content):
    path = tmp_path / "rows.jsonl"
    with pytest.raises(SpecError, match=r"none of its first \d lines is a JSON object .*\{kind: huggingface, files: "):
        read(path, content)
