"""What programs write into files: encodings, backslashes, narrow floats, NaN, and lists where lines are expected."""

import io
import json
import tarfile
import threading
import zipfile
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.config.loading import SpecError
from tasks.sourcing.loaders import compute_fingerprint, list_source_files
from tasks.sourcing.prompts import build_prompts
from tasks.sourcing.spec import SourceSpec

ROW = '{"prompt": "%d + 0?", "ground_truth": "%d"}'
LINES = "".join(ROW % (n, n) + "\n" for n in range(10))


def spec(loader, **changes):
    return SourceSpec.model_validate({"name": "src", "domain": "math", "verifier": "math", "loader": loader, **changes})


def jsonl(path, **changes):
    return spec({"kind": "jsonl", "path": str(path)}, **changes)


def by_extension(path, **changes):
    return spec({"kind": "huggingface", "files": str(path)}, **changes)


def truths(source):
    return [json.loads(truth) for truth in build_prompts(source, 10_000).prompts["ground_truth"].to_pylist()]


def names(folder, pattern):
    return [file.path.removeprefix(f"{folder}/") for file in list_source_files(jsonl(f"{folder}/{pattern}"))]


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("g/*/a.jsonl", ["g/x1/a.jsonl", "g/x2/a.jsonl"]),
        ("g/x?/a.jsonl", ["g/x1/a.jsonl", "g/x2/a.jsonl"]),
        ("g/x[2-9]/a.jsonl", ["g/x2/a.jsonl"]),
        ("g/**/a.jsonl", ["g/x1/a.jsonl", "g/x2/a.jsonl", "g/x2/y/a.jsonl"]),
        ("g/x*/*.jsonl", ["g/x1/a.jsonl", "g/x1/b.jsonl", "g/x2/a.jsonl"]),
        ("*/x1/[ab].jsonl", ["g/x1/a.jsonl", "g/x1/b.jsonl"]),
        ("g/x1/*", ["g/x1/a.jsonl", "g/x1/b.jsonl"]),
        ("g/x1/.*.jsonl", ["g/x1/.old.jsonl"]),
        (".kept/*.jsonl", [".kept/a.jsonl"]),
        ("g/.git/*.jsonl", ["g/.git/a.jsonl"]),
    ],
)
def test_a_glob_matches_as_in_a_shell(tmp_path, pattern, matching):
    for name in ("g/x1/a", "g/x1/b", "g/x1/.old", "g/x2/a", "g/x2/y/a", "g/x2/._a", "g/.git/a", ".kept/a"):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LINES)
        with fsspec.open(f"memory:/{path}", "w") as stream:
            stream.write(LINES)
    assert names(tmp_path, pattern) == matching
    assert [file.path for file in list_source_files(jsonl(f"memory:/{tmp_path}/{pattern}"))] == [
        f"{tmp_path}/{name}" for name in matching
    ]


def test_a_glob_that_matches_hidden_files_alone_says_so(tmp_path):
    (tmp_path / ".old.jsonl").write_text(LINES)
    with pytest.raises(SpecError, match=r"only hidden files match, such as .*/\.old\.jsonl; begin the name"):
        names(tmp_path, "*.jsonl")
    with pytest.raises(SpecError, match=r"\*\.csv'?: no file matches"):
        names(tmp_path, "*.csv")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("name", ["rows.jsonl", "list.json", "rows.csv"])
def test_every_row_of_a_file_in_another_unicode_is_read(tmp_path, encoding, name):
    answers = [f"{n}漢\u2028é" for n in range(10)]
    rows = [{"prompt": f"{n}?", "ground_truth": answer} for n, answer in enumerate(answers)]
    text = {
        "rows.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows),
        "list.json": json.dumps(rows, ensure_ascii=False, indent=1),
        "rows.csv": "prompt,ground_truth\r\n" + "".join(f"{n}?,{answer}\r\n" for n, answer in enumerate(answers)),
    }[name]
    (tmp_path / name).write_bytes(text.encode(encoding))
    assert truths(by_extension(tmp_path / name)) == answers


def test_a_file_that_ends_within_a_character_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(LINES.encode("utf-16")[:-1])
    with pytest.raises(SpecError, match=r"rows\.jsonl cannot be read: 'utf-16-le' codec can't decode|truncated data"):
        truths(jsonl(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ('"He said \\"hi\\", then\nfoo,5\nend",7\n', "not valid CSV: .* in line 2"),
        ('"He said \\"hi\\", then \\"\nfoo,5\nend",7\n', "the row of line 2 may end in line 2, or elsewhere"),
        ('"only \\",\\" then\nfoo,5\nend",7\n', "the row of line 2 may end in line 2, or elsewhere"),
        ('"a \\"",1\nb,2\n"c \\"",3\n', r"not valid CSV: .* in line 4, in a row that begins in line 2"),
        ('"a \\"",1\nb,2\n",3\n', "the row of line 2 may end in line 4, or elsewhere"),
        ('"a"b,"x\ny",5\n', "the row of line 2 may end in line 2"),
        ('"a,1\nb,2\n"c",3\n', r"not valid CSV: .* in line 4, in a row that begins in line 2"),
    ],
)
def test_a_csv_file_whose_rows_end_in_an_unclear_place_is_refused(tmp_path, rows, said):
    (tmp_path / "rows.csv").write_text("prompt,ground_truth\nfirst,0\n".replace("first,0\n", "") + rows + "last,9\n")
    with pytest.raises(SpecError, match=rf"rows\.csv cannot be read: .*({said}|may end in line).*as JSON Lines or"):
        truths(by_extension(tmp_path / "rows.csv"))


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ('"What is \\frac{1}{2}, in words?",half', "half"),
        ('What did G\\"odel prove?,incompleteness', "incompleteness"),
        ('"What did G\\""odel, K. prove?",incompleteness', "incompleteness"),
        ('"Lines end in \\\\",yes', "yes"),
        ('"two\nlines of ""text\\""",yes', "yes"),
    ],
)
def test_backslashes_of_formulas_are_text(tmp_path, row, answer):
    (tmp_path / "rows.csv").write_text(f"prompt,ground_truth\n{row}\nlast,9\n")
    assert truths(by_extension(tmp_path / "rows.csv")) == [answer, "9"]


def test_a_row_with_escaped_marks_that_ends_with_its_line_costs_itself_alone(tmp_path):
    (tmp_path / "rows.csv").write_text('prompt,ground_truth\n"say \\"hi\\" now",1\nlast,9\n')
    made = build_prompts(by_extension(tmp_path / "rows.csv"), 1000)
    assert made.prompts.num_rows == 1
    assert made.reasons == {"not valid CSV": 1}


@pytest.mark.parametrize(
    "type_", [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(20, 4), pa.decimal256(50, 20)], ids=str
)
@pytest.mark.parametrize("shape", ["column", "list", "struct", "list of structs"])
def test_numbers_of_parquet_are_the_shortest_decimals_of_their_type(tmp_path, type_, shape):
    numbers = ["0.1", "3.14", "-2.5", "7", "0.001"]
    given = list(map(Decimal if pa.types.is_decimal(type_) else float, numbers))
    if pa.types.is_float16(type_):
        import numpy as np

        given = list(map(np.float16, given))
    held, wanted, path = {
        "column": (pa.array(given, type_), numbers, "ground_truth"),
        "list": (pa.array([[one, one] for one in given], pa.list_(type_)), [[n, n] for n in numbers], "ground_truth"),
        "struct": (pa.array([{"a": one} for one in given], pa.struct({"a": type_})), numbers, "ground_truth.a"),
        "list of structs": (
            pa.array([[{"a": None}, {"a": one}] for one in given], pa.list_(pa.struct({"a": type_}))),
            numbers,
            "ground_truth.1.a",
        ),
    }[shape]
    table = pa.table({"prompt": [f"{n}?" for n in range(len(numbers))], "ground_truth": held})
    pq.write_table(table, tmp_path / "rows.parquet")
    columns = {"ground_truth": path}
    assert truths(spec({"kind": "parquet", "path": str(tmp_path / "rows.parquet")}, columns=columns)) == wanted


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("3.14159265358979323846264338327", "3.14159265358979323846264338327"),
        ("0.1", "0.1"), ("7.0", "7"), ("2.50", "2.5"), ("1e22", "1" + "0" * 22), ("-0.0", "0"), ("1E-7", "0.0000001"),
        ("123456789.123456789123456789", "123456789.123456789123456789"), ("1.0000000000000000000", "1"),
        ("9007199254740993.0", "9007199254740993"), ("0.30000000000000004", "0.30000000000000004"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("layout", ['{"prompt": "?", "ground_truth": %s}\n', '[{"prompt": "?", "ground_truth": [%s]}]'])
def test_decimals_of_json_keep_their_digits(tmp_path, written, answer, layout):
    (tmp_path / "rows.json").write_text(layout % written)
    assert truths(by_extension(tmp_path / "rows.json")) == [answer]


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_has_not_costs_the_rows_that_need_it(tmp_path, constant):
    row = '{"prompt": "%d?", "ground_truth": %s, "level": %s, "unread": {"scores": [1.5, %s]}}\n'
    text = "".join(row % (n, 1, 2, constant) for n in range(150))
    path = tmp_path / "rows.jsonl"
    path.write_text(text + row % (150, constant, 2, 0) + row % (151, 1, constant, 0))
    assert build_prompts(jsonl(path), 1000).prompts.num_rows == 151
    made = build_prompts(jsonl(path, columns={"keep": ["level", "prompt"]}), 1000)
    answer, kept = [row["reason"] for row in made.set_aside.to_pylist()]
    assert answer == f"column 'ground_truth': {constant.replace('-', '')} is not a JSON number"
    assert kept.startswith("column 'level' is not a JSON value: ")
    assert made.prompts.num_rows == 150


@pytest.mark.parametrize("type_", [pa.date32(), pa.timestamp("s"), pa.decimal128(5, 2), pa.binary()], ids=str)
def test_a_kept_column_without_json_values_is_named(tmp_path, type_):
    given = {pa.date32(): 1, pa.timestamp("s"): 1, pa.decimal128(5, 2): Decimal("1.5"), pa.binary(): b"\xff"}[type_]
    columns = {"prompt": ["a?", "b?"], "ground_truth": ["1", "2"], "level": [1, 1], "when": [None, given]}
    schema = pa.schema({"prompt": pa.string(), "ground_truth": pa.string(), "level": pa.int64(), "when": type_})
    pq.write_table(pa.table(columns, schema), tmp_path / "rows.parquet")
    loader = {"kind": "parquet", "path": str(tmp_path / "rows.parquet")}
    made = build_prompts(spec(loader, columns={"keep": ["level", "when"]}), 1000)
    (reason,) = made.set_aside["reason"].to_pylist()
    assert reason.startswith("column 'when' is not a JSON value: ")


class Server(BaseHTTPRequestHandler):
    content = b""
    headers_given: dict[str, str] = {}  # noqa: RUF012

    def do_GET(self):
        self.send_response(200)
        for key, value in {"Content-Length": str(len(self.content)), **self.headers_given}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.content)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/rows.jsonl"
    Server.headers_given = {}
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "headers", [{}, {"ETag": '"%d"'}, {"Last-Modified": "Mon, 01 Jan 2024 00:00:0%d GMT"}], ids=str
)
def test_a_file_on_a_server_that_changes_at_the_same_size_changes_the_fingerprint(url, headers):
    prints = []
    for answer in (4, 5, 5):
        Server.content = (ROW % (answer, answer)).encode()
        Server.headers_given = {key: value % answer for key, value in headers.items()}
        prints.append(compute_fingerprint(jsonl(url)))
        assert truths(jsonl(url)) == [str(answer)]
    assert prints[0] != prints[1] == prints[2]


def test_a_checksum_saves_the_download_that_a_server_without_one_needs(url):
    Server.content, Server.headers_given = b"x", {"ETag": '"1"'}
    before = compute_fingerprint(jsonl(url))
    Server.content = b"y"
    assert compute_fingerprint(jsonl(url)) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.json", "\n".join(json.dumps(json.loads(ROW % (n, n)), indent=2) for n in (1, 2))),
        ("rows.json", ROW % (1, 1) + "\n" + ROW % (2, 2)),
        ("rows.json", ROW % (1, 1) + ROW % (2, 2)),
        ("rows.json", "[\n" + ROW % (1, 1) + ",\n" + ROW % (2, 2) + "\n]"),
        ("rows.ndjson", ROW % (1, 1) + "\n" + ROW % (2, 2)),
        ("rows.tsv", 'prompt\tground_truth\na, b\t1\n"c\td"\t2\n'),
    ],
    ids=["pretty objects", "lines", "objects on one line", "a list", "ndjson", "tsv"],
)  # fmt: skip
def test_layouts_of_json_and_tsv_are_read_by_extension(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert truths(by_extension(tmp_path / name)) == ["1", "2"]


@pytest.mark.parametrize("loader", [jsonl, by_extension])
@pytest.mark.parametrize(
    "text",
    [
        "[\n" + ROW % (1, 1) + ",\n" + ROW % (2, 2) + "\n]",
        "[" + ROW % (1, 1) + ",\n" + ROW % (2, 2) + "]",
        '{\n "turns": [\n' + ROW % (1, 1) + "\n]}",
    ],
    ids=["a list", "a list that begins in the first row", "an object"],
)
def test_a_file_of_json_lines_that_holds_one_value_is_refused_with_the_loader_that_reads_it(tmp_path, text, loader):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(SpecError, match=r"only the start of JSON.*huggingface.* ends in \.json"):
        truths(loader(tmp_path / "rows.jsonl"))
    (tmp_path / "rows.jsonl").rename(tmp_path / "rows.json")
    if text[0] == "[":
        assert truths(by_extension(tmp_path / "rows.json")) == ["1", "2"]


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_a_tar_archive_is_refused(tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    with tarfile.open(path, "w:gz" if ending == "tar.gz" else "w") as archive:
        for number in range(2):
            member = tarfile.TarInfo(f"{number}.jsonl")
            member.size = len(LINES)
            archive.addfile(member, io.BytesIO(LINES.encode()))
    with pytest.raises(SpecError, match="it is a tar archive; unpack it"):
        truths(jsonl(path))


def test_what_macos_adds_to_an_archive_is_not_a_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "rows.jsonl.zip", "w") as archive:
        archive.writestr("data/rows.jsonl", LINES)
        for name in ("__MACOSX/data/._rows.jsonl", "data/.DS_Store", "data/._rows.jsonl"):
            archive.writestr(name, "\0\5\26\7")
    assert len(truths(jsonl(tmp_path / "rows.jsonl.zip"))) == 10


@pytest.mark.parametrize("path", ["answer", "info.answer"])
def test_a_column_that_the_first_rows_lack_is_found_in_later_ones(tmp_path, path):
    late = {"answer": "7"} if path == "answer" else {"info": {"answer": "7"}}
    rows = [{"prompt": f"{n}?"} | ({} if path == "answer" else {"info": None}) for n in range(300)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "?"} | late]))
    columns = {"ground_truth": path}
    made = build_prompts(jsonl(tmp_path / "rows.jsonl", columns=columns), 1000)
    assert (made.prompts.num_rows, made.set_aside.num_rows) == (1, 300)
    with pytest.raises(SpecError, match="has no column 'anser'"):
        truths(jsonl(tmp_path / "rows.jsonl", columns={"ground_truth": "anser", "keep": [path]}))


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "{'a': 1, 'a': 2}", '[{"b": {"a": 1, "a": 1}}]'])
def test_a_key_that_occurs_twice_in_text_costs_the_row(tmp_path, text):
    rows = [{"prompt": "a?", "info": '{"a": 1}'}, {"prompt": text, "info": '{"a": 2}'}, {"prompt": "c?", "info": text}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = build_prompts(jsonl(path, columns={"ground_truth": "info.a"}), 1000)
    assert made.prompts.num_rows == 2  # a prompt that happens to look like JSON is text
    (row,) = made.set_aside.to_pylist()
    assert row["reason"].startswith("key ")
    assert "occurs twice in an object that is text" in row["reason"]
    chosen = build_prompts(jsonl(path, columns={"ground_truth": "info.a"}, where={"info.a": [1, 2]}), 1000)
    assert [row["kind"] for row in chosen.set_aside.to_pylist()] == ["malformed"]


@pytest.mark.parametrize(
    ("wanted", "levels"), [(1, [1, 1.0, [1]]), (True, [True]), ([1, True], [1, True, 1.0, [1]]), ("1", ["1"])]
)
def test_where_tells_numbers_from_booleans_and_text(tmp_path, wanted, levels):
    path = tmp_path / "rows.jsonl"
    every = [1, True, "1", 1.0, [1], [1, 1], None, 0, False]
    path.write_text(
        "".join(json.dumps({"prompt": f"{n}?", "ground_truth": json.dumps(level), "level": level}) + "\n"
                for n, level in enumerate(every))
    )  # fmt: skip
    assert [json.loads(truth) for truth in truths(jsonl(path, where={"level": wanted}))] == levels


def data_set(folder):
    return spec({"kind": "huggingface", "dataset": str(folder), "revision": "0" * 40})


@pytest.mark.long
@pytest.mark.parametrize("extra", [{}, {"level": [[0.1], None]}], ids=["one column", "several columns"])
def test_a_data_set_of_parquet_has_the_shortest_decimals_of_its_types(tmp_path, extra):
    table = pa.table({"prompt": ["a?", "b?"], "ground_truth": pa.array([0.1, 3.14], pa.float32()), **extra})
    pq.write_table(table, tmp_path / "train.parquet")
    assert truths(data_set(tmp_path)) == ["0.1", "3.14"]


@pytest.mark.long
def test_a_data_set_with_a_loading_script_is_refused_with_a_way_out(tmp_path):
    folder = tmp_path / "old_set"
    folder.mkdir()
    (folder / "old_set.py").write_text("import datasets\n")
    with pytest.raises(SpecError, match=r"old_set has a loading script.* as Parquet: revision: refs/convert/parquet"):
        truths(data_set(folder))
