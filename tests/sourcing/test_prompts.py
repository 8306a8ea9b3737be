"""Every row becomes a prompt or is set aside with its reason; a source that gives no prompt is an error."""

import gzip
import json
import os
import shutil
import subprocess
import sys

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tasks.config.loading import SpecError, load_yaml
from tasks.inputs.files import DataFile
from tasks.sourcing.files import File
from tasks.sourcing.loaders import add_fingerprint, check, check_unchanged, compute_fingerprint
from tasks.sourcing.prompts import build_prompts
from tasks.sourcing.spec import SourceBatch, SourceSpec
from tasks.tables.parquet import write_table
from tasks.tables.schemas import PROMPTS, prompt_id
from tasks.verifiers.code import SandboxError, nothing
from tests.cleaning.prompts import merged
from tests.paths import DATA, ROOT

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data at {DATA} (set RLVR_TEST_DATA)")

GOOD = {"prompt": "1 + 1?", "ground_truth": "2"}


def spec(loader, **changes):
    return SourceSpec.model_validate({"name": "src", "domain": "math", "verifier": "math", "loader": loader, **changes})


def jsonl(tmp_path, *rows, **changes):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return spec({"kind": "jsonl", "path": str(path)}, **changes)


def precise_if(ids, kwargs):
    return {"prompt": "Write.", "ground_truth": "2", "instruction_ids": ids, "kwargs": kwargs}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"prompt": "1 + 1?"', "not valid JSON"),
        ("[1, 2]", "a JSON list, not an object"),
        ('{"prompt": "?", "ground_truth": NaN}', "NaN is not a JSON number"),
        ({"ground_truth": "2"}, "column 'prompt' is missing"),
        ({"prompt": None, "ground_truth": "2"}, "column 'prompt' is null"),
        ({"prompt": "?"}, "column 'ground_truth' is missing"),
        ({"prompt": "?", "ground_truth": None}, "column 'ground_truth' is null"),
        ({"prompt": " \n", "ground_truth": "2"}, "the prompt is empty"),
        ({"prompt": 3, "ground_truth": "2"}, "neither text nor a list of messages"),
        ({"prompt": "x" * 51, "ground_truth": "2"}, "prompt of 51 characters, more than max_prompt_chars 50"),
        ({"prompt": "?", "ground_truth": " "}, "the ground truth is empty"),
        ({"prompt": "?", "ground_truth": {"a": 1}}, "neither text nor a number"),
        ({"prompt": "?", "ground_truth": []}, "the list of answers is empty"),
        ({"prompt": "\ud800?", "ground_truth": "2"}, "not valid Unicode"),
        ({"prompt": [{"role": "user"}], "ground_truth": "2"}, "a message needs a role"),
        (
            {"prompt": [{"role": "assistant", "content": "?"}], "ground_truth": "2"},
            "the last message is not the user's",
        ),
        (GOOD, "duplicate of row 0"),
    ],
)
def test_an_unusable_row_is_set_aside_with_its_place_reason_and_value(tmp_path, bad, reason):
    got = build_prompts(jsonl(tmp_path, GOOD, bad), 50)
    assert len(got.prompts) == 1
    (set_aside,) = got.set_aside.to_pylist()
    assert (set_aside["source"], set_aside["row"]) == ("src", 1)
    assert reason in set_aside["reason"]
    duplicates = int(bad is GOOD)
    assert got.counts == {"read": 2, "usable": 1, "set_aside": 1, "duplicates": duplicates, "answers_left_off": 0}


@pytest.mark.parametrize(
    ("ids", "kwargs", "reason"),
    [
        (["punctuation:no_comma"], [], "1 constraint ids but 0 sets of arguments"),
        (["punctuation:no_coma"], [{}], "unknown constraint 'punctuation:no_coma'"),
        (["length_constraints:number_words"], [{"num_words": 3}], "accepts the arguments ['num_words', 'relation']"),
        (["detectable_format:number_bullet_lists"], [{"num_bullets": "3"}], "num_bullets must be a count"),
        ([], [], "not a list with at least one"),
    ],
)
def test_constraints_that_no_checker_takes_are_set_aside(tmp_path, ids, kwargs, reason):
    good = precise_if(["detectable_format:number_bullet_lists"], [{"num_bullets": 3.0, "num_words": None}])
    source = jsonl(tmp_path, good, precise_if(ids, kwargs), domain="precise_if", verifier="precise_if")
    got = build_prompts(source, 50)
    assert reason in got.set_aside.to_pylist()[0]["reason"]
    assert json.loads(got.prompts.to_pylist()[0]["ground_truth"])["kwargs"] == [{"num_bullets": 3}]


@pytest.mark.parametrize(
    "tests", [None, [], "assert f()", [""], [{"input": "1"}], ["assert f()", {"input": "", "output": ""}]]
)
def test_code_without_tests_is_set_aside(tmp_path, tests):
    rows = [{"prompt": "a", "tests": ["assert f()"]}, {"prompt": "b", "tests": tests}]
    got = build_prompts(jsonl(tmp_path, *rows, domain="code", verifier="code"), 50)
    assert got.counts["set_aside"] == 1
    assert json.loads(got.prompts.to_pylist()[0]["ground_truth"]) == {"tests": ["assert f()"], "setup": ""}


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (["assert 1"], "tests that pass without a response"),
        (["try:\n    f()\nexcept Exception:\n    pass"], "tests that pass without a response"),
        (["def check(candidate):\n    assert candidate() == 1"], "tests that pass without a response"),
        (["assert (f() == 1, 2)"], "asserts a tuple, which is always true"),
        (["assert f() == Point(1)\nPoint(1).x"], "compares instances of the response"),
        (["def test_it(fixture):\n    assert f() == 1"], "which takes arguments that nothing provides"),
    ],
)
def test_tests_that_test_nothing_are_set_aside_with_their_row(tmp_path, tests, reason):
    rows = [{"prompt": "a", "tests": ["assert f() == 1", "assert 1"]}, {"prompt": "b", "tests": tests}]
    got = build_prompts(jsonl(tmp_path, *rows, domain="code", verifier="code"), 50)
    (row,) = got.set_aside.to_pylist()
    assert (row["row"], row["kind"]) == (1, "ground_truth")
    assert reason in row["reason"]


def test_a_test_that_needs_no_response_becomes_a_part_of_one_that_does(tmp_path):
    tests = [
        "data = [2, 1]",
        "assert f(data) == [1, 2]",
        "assert True",
        "assert f([]) == []",
        "f.__name__ or 1",
        "x = 3",
    ]
    got = build_prompts(jsonl(tmp_path, {"prompt": "a", "tests": tests}, domain="code", verifier="code"), 50)
    truth = json.loads(got.prompts.to_pylist()[0]["ground_truth"])
    assert truth["tests"] == ["\n".join(tests[:2]), "\n".join(tests[2:4]), "\n".join(tests[4:])]


def test_without_a_sandbox_tests_that_only_it_could_try_are_counted(tmp_path, monkeypatch):
    def none():
        raise SandboxError("no sandbox")

    monkeypatch.setattr(nothing, "_start_sandbox", none)
    rows = [
        {"prompt": "a", "tests": ["assert f() == 1"]},
        {"prompt": "b", "tests": ["for x in (1,):\n    assert f(x)"]},
    ]
    got = build_prompts(jsonl(tmp_path, *rows, domain="code", verifier="code"), 50)
    assert (got.counts["usable"], got.counts["tests_not_tried"]) == (2, 1)


def test_code_that_is_given_to_the_response_has_a_column_of_its_own(tmp_path):
    row = {
        "prompt": "a",
        "tests": ["assert f(Node(1)) == 1"],
        "header": ["class Node:", "    def __init__(self, x): self.x = x"],
    }
    source = jsonl(tmp_path, row, domain="code", verifier="code", columns={"given": "header"})
    (prompt,) = build_prompts(source, 50).prompts.to_pylist()
    assert json.loads(prompt["ground_truth"])["given"] == "\n".join(row["header"])


def test_a_source_with_no_usable_row_is_one_error_with_its_commonest_reasons(tmp_path):
    rows = [{"prompt": "", "ground_truth": "2"}] * 2 + [{"prompt": "a", "ground_truth": None}, "{"]
    with pytest.raises(SpecError, match="'src': none of its 4 rows is usable: 2 times: the prompt is empty"):
        build_prompts(jsonl(tmp_path, *rows), 50)
    with pytest.raises(SpecError, match="'src': it has no rows"):
        build_prompts(jsonl(tmp_path), 50)


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ({"kind": "jsonl", "path": "nowhere.jsonl"}, "loader.path = 'nowhere.jsonl': no such file"),
        ({"kind": "jsonl", "path": "nowhere*.jsonl"}, "no file matches"),
        ({"kind": "jsonl", "path": "."}, "not a file; a folder's files are named by a glob"),
        ({"kind": "jsonl", "path": "ftpp://a/b"}, "not a path that can be opened"),
        ({"kind": "parquet", "path": str(ROOT / "pyproject.toml")}, "pyproject.toml cannot be read"),
        ({"kind": "huggingface", "files": "nowhere.jsonl"}, "loader.files = 'nowhere.jsonl': no such file"),
        ({"kind": "huggingface", "files": str(ROOT / "pyproject.toml")}, "its name must end in one of .jsonl"),
        ({"kind": "reasoning_gym", "dataset": "chain_sums", "size": 3}, "no such data set (did you mean 'chain_sum'?)"),
        (
            {"kind": "reasoning_gym", "dataset": "products", "size": 3, "config": {"digits": 1}},
            "config = {'digits': 1}",
        ),
    ],
)
def test_a_source_that_cannot_be_opened_is_one_error_before_its_rows_are_read(loader, said):
    for open_it in (check, lambda source: build_prompts(source, 50)):
        with pytest.raises(SpecError, match="source 'src'") as caught:
            open_it(spec(loader))
        assert said in str(caught.value)


def test_a_column_that_the_file_lacks_is_named_with_those_it_has(tmp_path):
    with pytest.raises(SpecError, match=r"rows\.jsonl has no column 'prompts' .did you mean 'prompt'.*'ground_truth'"):
        check(jsonl(tmp_path, GOOD, columns={"prompt": "prompts"}))
    with pytest.raises(SpecError, match="has no column 'level'"):
        check(jsonl(tmp_path, GOOD, columns={"keep": ["level"]}))


def test_prompts_are_mapped_as_the_columns_say(tmp_path):
    row = {"q": "What is {x}?", "a": "so\n#### 1,000\n#### 7 ", "level": 3}
    columns = {
        "prompt": "q", "ground_truth": "a", "ground_truth_pattern": "#### (.+)", "keep": ["level"],
        "system": "Be brief.", "template": "{prompt} Use \\boxed{}.",
    }  # fmt: skip
    (prompt,) = build_prompts(jsonl(tmp_path, row, columns=columns), 90).prompts.to_pylist()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is {x}? Use \\boxed{}."},
    ]
    assert prompt["messages"] == messages
    assert json.loads(prompt["ground_truth"]) == "7"
    assert (prompt["row"], prompt["cluster"]) == (0, None)
    assert json.loads(prompt["metadata"]) == {"columns": {"level": 3}}
    assert prompt["prompt_id"] == prompt_id(messages, "math", "7")


def test_chat_takes_a_reference_or_none(tmp_path):
    talk = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "A?"},
    ]
    row = {"prompt": talk, "ground_truth": "B."}
    for verifier, truth in (("chat_reference", {"reference": "B."}), ("chat_open", None)):
        (prompt,) = build_prompts(jsonl(tmp_path, row, domain="chat", verifier=verifier), 50).prompts.to_pylist()
        assert prompt["messages"] == talk
        assert json.loads(prompt["ground_truth"]) == truth


def test_a_limit_is_a_seeded_sample_that_later_rows_hardly_move(tmp_path):
    def rows(count, **changes):
        source = jsonl(tmp_path, *({"prompt": f"{n}?", "ground_truth": n} for n in range(count)), **changes)
        return build_prompts(source, 50).prompts.column("row").to_pylist()

    chosen = rows(200, limit=20)
    assert chosen == sorted(chosen) == rows(200, limit=20)
    assert len(chosen) == 20
    assert chosen != rows(200, limit=20, seed=1)
    assert len(set(chosen) & set(rows(210, limit=20))) >= 15


def test_files_are_read_in_order_compressed_or_not_and_from_any_filesystem(tmp_path):
    import fsspec

    (tmp_path / "a.jsonl").write_text(json.dumps(GOOD) + "\n\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "3?", "ground_truth": 3}\n'))
    got = build_prompts(spec({"kind": "jsonl", "path": str(tmp_path / "*.jsonl*")}), 50).prompts
    assert [json.loads(each) for each in got.column("ground_truth").to_pylist()] == ["2", "3"]
    with fsspec.open("memory://rows.jsonl", "w") as stream:
        stream.write(json.dumps(GOOD))
    for loader in (
        {"kind": "jsonl", "path": "memory://rows.jsonl"},
        {"kind": "huggingface", "files": "memory://rows.jsonl"},
    ):
        assert len(build_prompts(spec(loader), 50).prompts) == 1


def test_a_file_that_breaks_off_in_its_middle_is_one_error(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    rows = "".join(json.dumps({"prompt": f"{n} {hash(str(n))}?", "ground_truth": n}) + "\n" for n in range(5000))
    whole = gzip.compress(rows.encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SpecError, match=r"rows\.jsonl\.gz cannot be read"):
        build_prompts(spec({"kind": "jsonl", "path": str(path)}), 90)


def test_a_broken_line_costs_itself_alone_whatever_loader_reads_it(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(GOOD) + "\n{broken\n")
    for kind, key in (("jsonl", "path"), ("huggingface", "files")):
        made = build_prompts(spec({"kind": kind, key: str(tmp_path / "rows.jsonl")}), 90)
        assert (made.counts["usable"], made.reasons) == (1, {"not valid JSON": 1})


def test_a_source_that_changed_since_the_run_was_checked_is_not_read(tmp_path):
    source = jsonl(tmp_path, {"prompt": "1?", "ground_truth": "1"})
    pinned = add_fingerprint(source)
    check_unchanged(pinned)
    jsonl(tmp_path, {"prompt": "2?", "ground_truth": "2"})
    with pytest.raises(SpecError, match=r"its rows, or your code .*, have changed since the run was checked"):
        check_unchanged(pinned)
    with pytest.raises(ValidationError, match="has no fingerprint, without which changed rows are not seen"):
        SourceBatch(sources=[source])


def test_a_remote_file_counts_by_the_checksum_of_its_content_whatever_else_is_reported(monkeypatch):
    reported = {"size": 3, "ETag": "one"}
    storage = fsspec.filesystem("memory")
    monkeypatch.setattr(storage, "info", lambda _, **__: dict(reported))
    before = File(storage, "/rows.jsonl").digest()
    reported["last_commit"] = None
    assert File(storage, "/rows.jsonl").digest() == before
    reported["ETag"] = "another"
    assert File(storage, "/rows.jsonl").digest() != before


def test_the_fingerprint_changes_with_the_content_and_not_with_the_time(tmp_path):
    source = jsonl(tmp_path, GOOD)
    before = compute_fingerprint(source)
    os.utime(source.loader.path, (1, 1))
    assert compute_fingerprint(source) == before
    jsonl(tmp_path, GOOD, GOOD)
    assert compute_fingerprint(source) != before


def test_equal_sources_give_equal_bytes(tmp_path):
    def make(name, size):
        loader = {"kind": "instructions", "size": size}
        return build_prompts(spec(loader, name=name, domain="precise_if", verifier="precise_if"), 900).prompts

    first = write_table(tmp_path / "a", make("one", 30), PROMPTS).read_bytes()
    assert first == write_table(tmp_path / "a", make("one", 30), PROMPTS).read_bytes()


def test_several_rewards_become_one_weighted_ground_truth(tmp_path):
    own = {"function": "tests.verifiers.rewards_of_a_user.accuracy", "weight": 0.5, "columns": ["answer"]}
    rows = jsonl(tmp_path, GOOD | {"answer": 2}, GOOD, weight=2.0, rewards=[own, {"verifier": "chat_open"}])
    built = build_prompts(rows, 50)
    [row] = built.prompts.to_pylist()
    assert row["verifier"] == "weighted"
    math, function, chat = json.loads(row["ground_truth"])["rewards"]
    assert math == {"verifier": "math", "weight": 2.0, "ground_truth": "2"}
    assert (function["verifier"], function["weight"]) == ("function", 0.5)
    assert function["ground_truth"]["columns"] == {"answer": 2, "ground_truth": "2"}
    assert len(function["ground_truth"]["digest"]) == 16
    assert chat == {"verifier": "chat_open", "weight": 1.0, "ground_truth": None}
    assert built.reasons == {"column 'answer' is missing": 1}


@pytest.mark.parametrize(
    ("changes", "truth"),
    [
        ({"mode": "exact"}, {"answer": "2", "mode": "exact"}),
        ({"mode": "gsm8k"}, {"answer": "2", "mode": "gsm8k"}),
        ({"domain": "precise_if", "verifier": "precise_if", "mode": "loose"}, None),
        ({"domain": "precise_if", "verifier": "precise_if", "mode": "both"}, None),
    ],
)
def test_a_mode_goes_with_the_ground_truth(tmp_path, changes, truth):
    row = precise_if(["punctuation:no_comma"], [{}])
    [built] = build_prompts(jsonl(tmp_path, row, **changes), 50).prompts.to_pylist()
    found = json.loads(built["ground_truth"])
    constraints = {"instruction_ids": ["punctuation:no_comma"], "kwargs": [{}]}
    assert found == (truth or constraints | {"mode": changes["mode"]})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mode": "loose"}, "verifier 'math' has no mode 'loose'; accepted: sympy, gsm8k, exact"),
        ({"weight": 2.0}, "weight is for a source with other rewards"),
        ({"rewards": [{"function": "f"}]}, "must be an import path"),
        ({"rewards": [{"weight": 2}]}, "give one of function"),
        ({"rewards": [{"verifier": "chat_open", "columns": ["a"]}]}, "only a function has columns"),
        ({"rewards": [{"verifier": "chat_open", "weight": 0}]}, "other than 0"),
        ({"rewards": [{"verifier": "chat_open", "weight": -1}]}, "must sum to more than 0"),
    ],
)
def test_rewards_that_make_no_sense_are_refused(tmp_path, changes, reason):
    with pytest.raises(ValueError, match=reason):
        jsonl(tmp_path, GOOD, **changes)


def test_a_changed_reward_function_changes_the_fingerprint(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "my_rewards_for_a_test.py"
    module.write_text("def f(completions, **columns):\n    return [1.0]\n")
    source = jsonl(tmp_path, GOOD, rewards=[{"function": "my_rewards_for_a_test.f"}])
    before = compute_fingerprint(source), build_prompts(source, 50).prompts.column("prompt_id").to_pylist()
    module.write_text("def f(completions, **columns):\n    return [0.5]\n")
    after = compute_fingerprint(source), build_prompts(source, 50).prompts.column("prompt_id").to_pylist()
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_the_quickstart_has_prompts_of_all_domains_and_cleaning_takes_none_of_them(tmp_path):
    spec = load_yaml(DataFile, ROOT / "data_specs" / "quickstart.yaml")
    tables = [build_prompts(each, spec.max_prompt_chars).prompts for each in spec.sources]
    prompts, set_aside = merged(tmp_path, tables, [each.name for each in spec.sources])
    domains = prompts.column("domain").to_pylist()
    assert domains.count("precise_if") == sum(each.loader.size for each in spec.sources if each.domain == "precise_if")
    assert 18 <= domains.count("math") <= 24
    assert domains.count("code") == 12
    assert domains.count("chat") == 4
    assert len(set_aside) == 0


@needs_data
def test_the_local_files_spec_reads_the_real_data_sets(tmp_path):
    (tmp_path / "data").symlink_to(DATA)
    spec = load_yaml(DataFile, shutil.copy(ROOT / "data_specs" / "local_files.yaml", tmp_path))
    got = {each.name: build_prompts(each, spec.max_prompt_chars) for each in spec.sources}
    assert {name: len(each.prompts) for name, each in got.items()} == {"gsm8k": 7473, "ifeval": 541, "mbpp": 500}
    assert json.loads(got["gsm8k"].prompts.column("ground_truth")[0].as_py()) == "72"
    ifeval = json.loads(got["ifeval"].prompts.column("ground_truth")[0].as_py())
    assert ifeval["kwargs"] == [{}, {"num_highlights": 3}, {"relation": "at least", "num_words": 300}]


@needs_data
def test_parquet_by_either_loader_gives_the_rows_of_the_jsonl(tmp_path):
    rows = [json.loads(line) for line in (DATA / "mbpp.jsonl").read_text().splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "mbpp.parquet", row_group_size=100)
    columns = {"prompt": "text", "tests": "test_list", "setup": "test_setup_code"}
    loaders = [
        {"kind": "jsonl", "path": str(DATA / "mbpp.jsonl")},
        {"kind": "parquet", "path": str(tmp_path / "mbpp.parquet")},
        {"kind": "huggingface", "files": str(tmp_path / "mbpp.parquet")},
    ]
    tables = [
        build_prompts(spec(each, domain="code", verifier="code", columns=columns), 9000).prompts for each in loaders
    ]
    assert len(tables[0]) == 974
    assert tables[0] == tables[1] == tables[2]


@pytest.mark.complete
@pytest.mark.long
def test_sourcing_loads_no_engine_even_where_one_is_installed(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(GOOD))
    program = f"""
import sys
from tasks.sourcing.prompts import build_prompts
from tasks.sourcing.spec import SourceBatch, SourceSpec
for loader in ({{"kind": "huggingface", "files": {str(tmp_path / "rows.jsonl")!r}}},
               {{"kind": "reasoning_gym", "dataset": "products", "size": 3}}):
    build_prompts(SourceSpec(name="a", domain="math", verifier="math", loader=loader), 900)
print(sorted({{"torch", "vllm", "ray", "deepspeed", "transformers"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
