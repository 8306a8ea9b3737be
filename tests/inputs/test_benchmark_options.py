"""What a benchmark file takes, what it refuses in a sentence, and how a data file names one."""

import json
from contextlib import nullcontext

import jsonschema
import pytest

from tasks.config.loading import SpecError, load_yaml, parse
from tasks.evaluation.per_prompt import Asked
from tasks.inputs.benchmarks import BenchmarkFile, find_benchmark
from tasks.inputs.evaluations import check_evaluation
from tasks.inputs.files import DataFile, EvaluationFile, load_quickstart
from tasks.inputs.json_schema import json_schema
from tasks.sourcing.loaders import check
from tasks.sourcing.prompts import build_prompts

GOOD = {"question": "1 + 1?", "answer": "2", "level": 1}


def written(tmp_path, **changes):
    """A benchmark of one row in a file beside it, written as YAML (which JSON is)."""
    (tmp_path / "rows.jsonl").write_text(json.dumps(GOOD) + "\n")
    source = {
        "domain": "math",
        "verifier": "math",
        "loader": {"kind": "jsonl", "path": "rows.jsonl"},
        "columns": {"prompt": "question", "ground_truth": "answer"},
    }
    options = {
        "name": "mine",
        "card": "https://example.org/mine",
        "licence": "mit",
        "source": source,
        "sampling": {"samples": 4, "max_tokens": 99, "vllm": {"repetition_penalty": 1.1}},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(options | changes))
    return path


def test_the_source_has_the_benchmarks_name_and_reads_beside_the_file(tmp_path):
    benchmark = load_yaml(BenchmarkFile, written(tmp_path, majority=[2, 4], margin=0.01, rows=1))
    assert benchmark.source.name == "mine"
    assert benchmark.sampling.vllm == {"repetition_penalty": 1.1}
    made = build_prompts(benchmark.source, benchmark.max_prompt_chars)
    assert made.prompts.column("source").to_pylist() == ["mine"]
    assert parse(BenchmarkFile, benchmark.model_dump_json()) == benchmark


def test_a_benchmark_extends_one_that_ships_under_a_name_of_its_own():
    mine = parse(BenchmarkFile, '{"extends": "gsm8k", "name": "mine", "source.limit": 10, "sampling": {"samples": 8}}')
    assert (mine.source.name, mine.source.limit, mine.sampling.max_tokens) == ("mine", 10, 1024)
    assert mine.source.columns == find_benchmark("gsm8k").source.columns


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"majority": [2, 5]}, "the whole file: majority: 5 is more than the 4 of sampling.samples"),
        ({"majority": [0]}, "majority[0] = 0: must be greater than or equal to 1"),
        ({"margin": 2}, "margin = 2: must be less than or equal to 1"),
        ({"margin": -0.1}, "margin = -0.1: must be greater than or equal to 0"),
        ({"rows": 0}, "rows = 0: must be greater than or equal to 1"),
        ({"card": "mine"}, "card = 'mine': String should match pattern '^https?://\\S+$'"),
        ({"sampling": {"vllm": {"penalty": 1}}}, "has no sampling argument 'penalty'"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_sentence(tmp_path, changes, sentence):
    path = written(tmp_path, **changes)
    with pytest.raises(SpecError) as error:
        load_yaml(BenchmarkFile, path)
    assert sentence in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "other"}, "source: its name is 'other', and the benchmark's is 'mine'; leave the source's out"),
        ({"limit": 3, "top_up": 2}, "source: top_up is only for prompts that difficulty selects"),
        ({"verifier": "code"}, "source: verifier 'code' does not fit domain 'math'"),
    ],
)
def test_a_source_that_makes_no_sense_is_one_sentence(tmp_path, changes, sentence):
    path = written(tmp_path)
    options = json.loads(path.read_text())
    path.write_text(json.dumps(options | {"source": options["source"] | changes}))
    with pytest.raises(SpecError) as error:
        load_yaml(BenchmarkFile, path)
    assert sentence in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_budget_of_thinking_needs_an_engine_that_knows_where_thinking_ends(tmp_path):
    path = written(tmp_path, sampling={"max_tokens": 99, "vllm": {"thinking_token_budget": 8}})
    options = {"extends": "quickstart", "benchmarks": [str(path)]}
    with pytest.raises(SpecError, match=r"'mine': its sampling.vllm.thinking_token_budget is 8, and the engine"):
        parse(EvaluationFile, json.dumps(options))
    for known in ({"reasoning_parser": "qwen3"}, {"reasoning_config": {"reasoning_end_str": "</think>"}}):
        [benchmark] = parse(EvaluationFile, json.dumps({**options, "engine.vllm": known})).benchmarks
        assert benchmark.sampling.vllm == {"thinking_token_budget": 8}


def test_majorities_are_for_answers_that_can_be_counted():
    with pytest.raises(SpecError, match="majority is for the verifier 'math' alone, and this one is 'precise_if'"):
        parse(BenchmarkFile, '{"extends": "ifeval", "majority": [1]}')


def source_of(tmp_path, *rows, **changes):
    path = written(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_yaml(BenchmarkFile, path).source.model_copy(update=changes)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": "2 + 2?"}, "column 'answer' is missing"),
        ({"question": "2 + 2?", "answer": None}, "column 'answer' is null"),
        ({"question": "2 + 2?", "answer": {"value": 4}}, "the ground truth is neither text nor a number"),
    ],
)
def test_a_row_that_cannot_be_asked_or_judged_is_set_aside_with_one_sentence(tmp_path, row, reason):
    made = build_prompts(source_of(tmp_path, GOOD, row), 100)
    assert made.set_aside.column("reason").to_pylist() == [reason]


def test_a_column_that_no_row_has_is_one_sentence(tmp_path):
    with pytest.raises(SpecError, match=r"source 'mine': columns: .*rows\.jsonl has no column 'answer'; it has"):
        check(source_of(tmp_path, {"question": "2 + 2?"}))


def test_a_benchmark_without_a_row_is_one_sentence(tmp_path):
    with pytest.raises(SpecError, match=r"^source 'mine': it has no rows$"):
        build_prompts(source_of(tmp_path, GOOD, where={"level": 9}), 100)


@pytest.mark.parametrize(("rows", "usable", "is_short"), [(None, 1, False), (1, 1, False), (2, 1, True), (1, 2, True)])
def test_a_count_other_than_the_cards_is_one_sentence(tmp_path, rows, usable, is_short):
    benchmark = load_yaml(BenchmarkFile, written(tmp_path, rows=rows))
    assert bool(benchmark.compared.describe_shortfall(usable)) == is_short
    part = benchmark.model_copy(update={"source": benchmark.source.model_copy(update={"limit": 1})})
    assert part.compared.describe_shortfall(usable) is None


def test_the_name_of_a_benchmark_stands_for_its_questions():
    named = DataFile.model_validate({"extends": "gsm8k", "evaluation_sets": ["gsm8k", "humaneval"]}).evaluation_sets
    gsm8k, humaneval = named
    assert (gsm8k.name, gsm8k.prompt, gsm8k.loader.split) == ("gsm8k-test", "question", "test")
    assert humaneval.source.transform == "data_specs.transforms.checked_function"
    assert humaneval.source.loader == find_benchmark("humaneval").source.loader


def test_the_path_of_a_benchmark_is_relative_to_the_data_file(tmp_path):
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    written(folder)
    path = tmp_path / "data.yaml"
    path.write_text("extends: gsm8k\nevaluation_sets: [gsm8k, benchmarks/mine.yaml]\n")
    data = load_yaml(DataFile, path)
    assert [known.name for known in data.evaluation_sets] == ["gsm8k-test", "mine"]
    assert [row.content for row in check(data.evaluation_sets[1].source)] == [GOOD]
    assert DataFile.model_validate_json(data.model_dump_json()) == data


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gsm9k", "evaluation_sets = 'gsm9k': no such file (did you mean 'gsm8k'?)"),
        ("nowhere.yaml", "nowhere.yaml: no such file"),
    ],
)
def test_a_benchmark_that_is_not_there_is_one_sentence(tmp_path, name, sentence):
    path = tmp_path / "data.yaml"
    path.write_text(f"extends: gsm8k\nevaluation_sets: [{name}]\n")
    with pytest.raises(SpecError) as error:
        load_yaml(DataFile, path)
    assert sentence in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_benchmark_whose_name_a_source_has_is_one_sentence(tmp_path):
    written(tmp_path, name="gsm8k")
    path = tmp_path / "data.yaml"
    path.write_text("extends: gsm8k\nevaluation_sets: [mine.yaml]\n")
    with pytest.raises(SpecError, match=r"must be unique; \['gsm8k'\] occur more than once"):
        load_yaml(DataFile, path)


@pytest.mark.parametrize(
    ("model", "content", "accepted"),
    [
        (DataFile, {"evaluation_sets": ["gsm8k", {"name": "a", "loader": {"kind": "jsonl", "path": "b"}}]}, True),
        (DataFile, {"evaluation_sets": [3]}, False),
        (BenchmarkFile, {"extends": "gsm8k", "source": {"limit": 3}}, True),
        (BenchmarkFile, {"extends": "gsm8k", "thinking_tokens": 3}, False),
    ],
)
def test_an_editor_takes_names_of_benchmarks_and_parts_of_a_source(model, content, accepted):
    assert jsonschema.Draft202012Validator(json_schema(model)).is_valid(content) == accepted


@pytest.mark.parametrize("where", ["benchmark", "held-out", "environment"])
def test_several_greedy_responses_are_the_same_and_refused_unless_an_environment_differs(tmp_path, where):
    data, training, _ = load_quickstart()
    greedy = {"samples": 20, "max_tokens": 99, "temperature": 0}
    options = {"extends": "quickstart"}
    if where == "benchmark":
        options["benchmarks"] = [str(written(tmp_path, sampling=greedy))]
    else:
        options["sampling"] = greedy
    if where == "environment":
        data = parse(DataFile, "quickstart_tools")
    evaluation = parse(EvaluationFile, json.dumps(options))
    sentence = "samples = 20 with temperature = 0, which gives the same response each time"
    with pytest.raises(SpecError, match=sentence) if where != "environment" else nullcontext():
        check_evaluation(data, training, evaluation)


def test_a_benchmark_is_divided_by_columns_that_it_keeps(tmp_path):
    columns = {"prompt": "question", "ground_truth": "answer"}
    source = json.loads(written(tmp_path).read_text())["source"]
    with pytest.raises(SpecError, match=r"by: 'level' is not in source\.columns\.keep"):
        load_yaml(BenchmarkFile, written(tmp_path, by=["level"]))
    path = written(tmp_path, by=["level"], source=source | {"columns": columns | {"keep": ["level"]}})
    benchmark = load_yaml(BenchmarkFile, path)
    assert benchmark.compared.by == ["level"]
    [row] = build_prompts(benchmark.source, 1000).prompts.to_pylist()
    assert Asked(build_prompts(benchmark.source, 1000).prompts).columns == {row["prompt_id"]: {"level": 1}}
