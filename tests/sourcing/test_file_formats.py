"""Files are read as they are written: compressed or not, cells as text, integers exactly, by the names they have."""

import bz2
import gzip
import io
import json
import lzma
import zipfile

import fsspec
import pyarrow as pa
import pytest

from tasks.config.loading import SpecError
from tasks.sourcing.ground_truths import ground_truth
from tasks.sourcing.loaders import list_source_files, open_rows
from tasks.sourcing.prompts import build_prompts
from tasks.sourcing.spec import SourceSpec

HUGE = 123456789012345678901234567890
LINES = b"".join(b'{"prompt": "%d + 1?", "ground_truth": %d}\n' % (n * 7919, n) for n in range(50))


def spec(loader):
    return SourceSpec.model_validate({"name": "src", "domain": "math", "verifier": "math", "loader": loader})


def zipped(*contents):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, content in enumerate(contents):
            archive.writestr(f"{number}.jsonl", content)
    return stream.getvalue()


def by_arrow(codec):
    def compress(content):
        stream = pa.BufferOutputStream()
        with pa.CompressedOutputStream(stream, codec) as out:
            out.write(content)
        return stream.getvalue().to_pybytes()

    return compress


COMPRESSIONS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda content: lzma.compress(content, lzma.FORMAT_ALONE),
    "zst": by_arrow("zstd"),
    "lz4": by_arrow("lz4"),
    "zip": zipped,
}


def truths(path, content, kind="jsonl", key="path"):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    built = build_prompts(spec({"kind": kind, key: str(path)}), 1000)
    return [json.loads(truth) for truth in built.prompts.column("ground_truth").to_pylist()]


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_a_compressed_file_is_read_and_a_cut_one_is_named(tmp_path, ending):
    whole = COMPRESSIONS[ending](LINES)
    assert truths(tmp_path / f"rows.jsonl.{ending}", whole) == [str(n) for n in range(50)]
    with pytest.raises(SpecError, match=rf"source 'src': loader.path: .*/cut\.jsonl\.{ending} cannot be read: "):
        truths(tmp_path / f"cut.jsonl.{ending}", whole[: len(whole) // 2])


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zip"])
def test_a_damaged_file_is_named_wherever_the_damage_is(tmp_path, ending):
    whole = COMPRESSIONS[ending](LINES)
    path = tmp_path / f"rows.jsonl.{ending}"
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        try:
            read = len(truths(path, bytes(damaged)))
        except SpecError as error:
            read = 50 if str(path) in str(error) else str(error)
        assert read == 50  # a byte of a header that nothing depends on, or a file that is named


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.jsonl", gzip.compress(LINES), r"compressed by gzip; give it a name that ends in \.gz"),
        ("rows.jsonl", COMPRESSIONS["zst"](LINES), r"compressed by zstd; give it a name that ends in \.zst"),
        ("rows.jsonl.gz", COMPRESSIONS["zst"](LINES), "compressed by zstd"),
        ("rows.jsonl.gz", LINES, "its name says gzip, and its content is not gzip"),
        ("rows.jsonl.zst", LINES, "its name says zstd, and its content is not zstd"),
        ("rows.jsonl.zip", zipped(LINES, LINES), "contains 2 files"),
    ],
)
def test_a_mislabelled_file_is_named(tmp_path, name, content, said):
    for kind, key in (("jsonl", "path"), ("huggingface", "files")):
        with pytest.raises(SpecError, match=rf"/{name} cannot be read: .*{said}"):
            truths(tmp_path / name, content, kind, key)


def cells(path, text):
    return truths(path, text, "huggingface", "files")


def test_cells_of_csv_are_text_as_written(tmp_path):
    written = ["007", "0.10", "None", "NA", "nan", "true", "1e5", "2024-01-01", str(HUGE), "9007199254740993", "+3"]
    text = "prompt,ground_truth\r\n" + "".join(f"{n}?,{cell}\r\n" for n, cell in enumerate(written)) + "b?,\r\n"
    assert cells(tmp_path / "rows.csv", "\ufeff" + text) == written
    assert cells(tmp_path / "rows.csv.gz", gzip.compress(text.encode())) == written


def test_csv_has_a_loader_of_its_own_whatever_the_name_of_the_file(tmp_path):
    text = "prompt,ground_truth\na?,007\nb?,None\n"
    assert truths(tmp_path / "rows.csv", text, "csv") == ["007", "None"]
    assert truths(tmp_path / "rows.txt.gz", gzip.compress(text.encode()), "csv") == ["007", "None"]
    assert truths(tmp_path / "rows.tsv", text.replace(",", "\t"), "csv") == ["007", "None"]


def test_csv_quotes_as_its_standard_says_and_a_bad_row_costs_itself_alone(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(
        b'prompt,ground_truth\n"1,\n""2""?",3\n\none cell\n\xff?,4\n"a"b,5\n' + b"x" * 200_000 + b",6\nlast?,7\n"
    )
    made = build_prompts(spec({"kind": "huggingface", "files": str(path)}), 300_000)
    assert [row[0]["content"][:9] for row in made.prompts["messages"].to_pylist()] == ['1,\n"2"?', "x" * 9, "last?"]
    assert made.reasons == {
        "another number of cells than columns": 1,
        "text that is not valid Unicode": 1,
        "not valid CSV": 1,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('prompt,ground_truth\na?,1\n"b?,2\nc?,3\n', "a quotation mark is not closed"),
        ("prompt,prompt,ground_truth\na?,b?,1\n", "column 'prompt' occurs twice"),
        ("prompt;ground_truth\na?;1\n", "its cells must be separated by commas"),
    ],
)
def test_a_csv_file_that_would_lose_rows_or_columns_is_named(tmp_path, text, said):
    with pytest.raises(SpecError, match=rf"loader.files: .*/rows\.csv cannot be read: {said}"):
        cells(tmp_path / "rows.csv", text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.jsonl", '{"prompt": "a", "ground_truth": %d}\n{"prompt": "b", "ground_truth": 1.5}\n'),
        ("rows.json", '{"prompt": "a", "ground_truth": %d}\n\n{"prompt": "b", "ground_truth": 1.5}'),
        ("rows.json", '[{"prompt": "a", "ground_truth": %d},\n {"prompt": "b", "ground_truth": 1.5}]'),
        ("rows.json", '\n[\n{"prompt": "a", "ground_truth": [%d]},\n {"prompt": "b", "ground_truth": "1.5"}\n]\n'),
    ],
    ids=["lines", "lines in .json", "list", "pretty list"],
)
def test_integers_of_json_are_exact_whatever_its_layout(tmp_path, name, text):
    assert cells(tmp_path / name, text % HUGE) == [str(HUGE), "1.5"]


def test_one_object_over_many_lines_is_a_row_and_an_item_that_is_none_is_set_aside(tmp_path):
    assert cells(tmp_path / "one.json", json.dumps({"prompt": "a", "ground_truth": HUGE}, indent=2)) == [str(HUGE)]
    assert cells(tmp_path / "two.json", '[{"prompt": "a", "ground_truth": 1}, 2]') == ["1"]
    with pytest.raises(SpecError, match=r"rows\.json cannot be read: "):
        cells(tmp_path / "rows.json", '[{"prompt": "a", "ground_truth": 1},')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7.0, "7"), (1e16, "10000000000000000"), (1e22, "1" + "0" * 22), (-0.0, "0"), (-3.0, "-3"), (0.1, "0.1"),
        (1e-7, "0.0000001"), (2.5, "2.5"), (HUGE, str(HUGE)), ([1.0, "x"], ["1", "x"]), ("7.0", "7.0"),
    ],
)  # fmt: skip
def test_whole_floats_become_integers_and_none_has_an_exponent(tmp_path, value, text):
    columns = spec({"kind": "jsonl", "path": "a"}).columns
    assert ground_truth({"ground_truth": value}, "math", columns) == text
    if isinstance(value, float):
        assert ground_truth({"ground_truth": value}, "chat_reference", columns) == {"reference": text}


@pytest.mark.parametrize(
    "name", ["a[1].jsonl", "b*.jsonl", "c?.jsonl", "d::e.jsonl", "f#g %20.jsonl", "[x]/[y]/z.jsonl", "~h.jsonl", "[!a"]
)
def test_a_file_that_exists_is_taken_by_its_name(tmp_path, monkeypatch, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for other in ("a1.jsonl", "bb.jsonl", "cc.jsonl"):
        (tmp_path / other).write_text("{}")
    path.write_text("{}")
    monkeypatch.chdir(tmp_path)
    for given in (name, str(path)):
        assert [file.path for file in list_source_files(spec({"kind": "jsonl", "path": given}))] == [str(path)]


def test_a_glob_in_a_folder_with_brackets_and_a_remote_file_with_some(tmp_path):
    for folder in ("run[1]", "run1"):
        (tmp_path / folder / "x").mkdir(parents=True)
        (tmp_path / folder / "x" / "a.jsonl").write_text("{}")
    for pattern in ("run[1]/*/*.jsonl", "run[1]/x/[ab].jsonl"):
        found = list_source_files(spec({"kind": "jsonl", "path": f"{tmp_path}/{pattern}"}))
        assert [file.path for file in found] == [f"{tmp_path}/run[1]/x/a.jsonl"]
    with fsspec.open("memory://a[1].jsonl", "w") as stream:
        stream.write('{"prompt": "1?", "ground_truth": 1}')
    rows = list(open_rows(spec({"kind": "jsonl", "path": "memory://a[1].jsonl"})))
    assert [row.content["ground_truth"] for row in rows] == [1]


@pytest.mark.parametrize(
    ("name", "content", "card"),
    [
        ("rows.csv", f"prompt,ground_truth\na,{HUGE}\nb,007\n", ""),
        ("rows.tsv", f"prompt\tground_truth\na\t{HUGE}\nb\t007\n", ""),
        ("rows.csv", f"a;{HUGE}\nb;007\n", "  sep: ';'\n  column_names: [prompt, ground_truth]\n"),
        ("rows.jsonl", f'{{"prompt": "a", "ground_truth": {HUGE}}}\n{{"prompt": "b", "ground_truth": "007"}}\n', ""),
        (
            "rows.json",
            f'{{"data": [{{"prompt": "a", "ground_truth": {HUGE}}}, {{"prompt": "b", "ground_truth": "007"}}]}}',
            "  field: data\n",
        ),
    ],
    ids=["csv", "tsv", "options of the card", "jsonl", "field"],
)
@pytest.mark.long
def test_a_data_set_of_csv_or_json_is_read_as_its_files_are(tmp_path, name, content, card):
    (tmp_path / name).write_text(content)
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files: {name}\n{card}---\n")
    made = build_prompts(data_set(tmp_path), 1000)
    assert [json.loads(truth) for truth in made.prompts.column("ground_truth").to_pylist()] == [str(HUGE), "007"]


@pytest.mark.long
def test_a_data_set_whose_card_asks_for_what_is_not_followed_is_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("prompt,ground_truth\na,1\n")
    card = "---\nconfigs:\n- config_name: default\n  data_files: rows.csv\n  skiprows: 1\n---\n"
    (tmp_path / "README.md").write_text(card)
    with pytest.raises(SpecError, match=r"its card sets \['skiprows'\] for its csv files, which are not supported"):
        build_prompts(data_set(tmp_path), 1000)


def data_set(folder):
    return spec({"kind": "huggingface", "dataset": str(folder), "revision": "0" * 40})


def test_a_source_keeps_no_reader_for_other_endings(tmp_path):
    (tmp_path / "rows.txt.gz").write_bytes(gzip.compress(LINES))
    source = spec({"kind": "huggingface", "files": str(tmp_path / "rows.txt.gz")})
    with pytest.raises(SpecError, match=r"must end in one of \.jsonl, \.json, \.parquet, \.csv"):
        list(open_rows(source))
