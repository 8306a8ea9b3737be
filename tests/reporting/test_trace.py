"""What became of a prompt, told from the tables of a run."""

import json
import re

import duckdb
import pytest
from click.testing import CliRunner

from tasks.commands.group import rlvr
from tasks.reporting.trace import TraceError, find, find_row, format_lines
from tasks.tables.parquet import build_table, write_table
from tasks.tables.schemas import (
    EVALUATION_ROLLOUTS,
    GRADED,
    LEDGER,
    MIXTURE,
    PROMPTS,
    ROLLOUTS,
    SET_ASIDE,
    prompt_id,
    set_aside_row,
)
from tests.excerpts.shown import HOSTILE, columns, outcome
from tests.paths import ROOT

DOCS = ROOT / "docs" / "tracing.md"


def prompt(number):
    messages = [{"role": "user", "content": f"What is {number} times 7?"}]
    truth = json.dumps(str(7 * number))
    return {
        "prompt_id": prompt_id(messages, "math", truth),
        "domain": "math",
        "source": "products",
        "messages": messages,
        "verifier": "math",
        "ground_truth": truth,
        "metadata": "{}",
        "cluster": None,
        "row": number,
    }


FIRST, SECOND = prompt(1), prompt(2)
ID = FIRST["prompt_id"]


def graded(row):
    return {**row, "pass_rate": 0.5, "mean_score": 0.625, "num_rollouts": 2, "mean_tokens": 12.0}


def rollout(identity, sample, score):
    return {
        "prompt_id": identity,
        "sample": sample,
        "response": "seven",
        "num_tokens": 12,
        "finish_reason": "stop",
        "score": score,
        "passed": None if score is None else score == 1,
        "rewards": None if score is None else [],
        "error": None if score is not None else "no verdict",
        "policy": "initial",
    }


def answer(policy, score, benchmark="heldout"):
    return {**rollout(ID, 0, score), "benchmark": benchmark, "policy": policy, "answer": None, "answer_class": None}


def group(number, fate, step):
    return {
        "group": number,
        "prompt_id": ID,
        "domain": "math",
        "actors": [0],
        "sampled_at": 1.0,
        "finished_at": 2.0,
        "first_version": 3,
        "last_version": 4,
        "scores": [1.0, 0.0],
        "num_tokens": [10, 20],
        "advantage_spread": 0.5,
        "fate": fate,
        "step": step,
        "detail": None if step else "2 versions old",
    }


@pytest.fixture
def run(tmp_path):
    clash = set_aside_row(
        "cleaning",
        "near_duplicate",
        "sums",
        9,
        "85% like a prompt",
        "7 times 1?",
        prompt_id="beef" * 8,
        clashed_with=ID,
    )
    again = set_aside_row(
        "cleaning", "duplicate", "sums", 4, "the same", "What is 1 times 7?", prompt_id=ID, clashed_with=ID
    )
    malformed = set_aside_row("sourcing", "malformed", "products", 5, "no such column", "{}")
    tables = {
        "prompts": (PROMPTS, [FIRST, SECOND]),
        "set_aside": (SET_ASIDE, [again, clash, malformed]),
        "rollouts": (ROLLOUTS, [rollout(ID, 0, 1.0), rollout(ID, 1, None)]),
        "graded": (GRADED, [graded(FIRST), graded(SECOND)]),
        "selected": (GRADED, [graded(FIRST)]),
        "mixture": (MIXTURE, [{**graded(FIRST), "repeat": 0, "order": 0}]),
        "evaluation_rollouts": (
            EVALUATION_ROLLOUTS,
            [answer("before", 0.0), answer("after", 1.0), answer("after", 0.0, "quiz")],
        ),
        "ledger": (LEDGER, [group(8, "trained", 6), group(2, "stale", None)]),
    }
    for name, (schema, rows) in tables.items():
        write_table(tmp_path / f"{name}.parquet", build_table(rows, schema, name), schema)
    return tmp_path


def test_a_life_is_told_in_the_order_of_the_pipeline(run):
    assert list(format_lines(find(run, ID[:6]))) == [
        f"prompt      {ID}, math, judged by math",
        "from        row 1 of source products",
        "            What is 1 times 7?",
        f"set aside   row 4 of sums by cleaning (duplicate): the same, kept: {ID[:8]}",
        f"set aside   row 9 of sums by cleaning (near_duplicate): 85% like a prompt, kept: {ID[:8]}",
        "difficulty  pass rate 50.0%, mean score 0.625 over 2 rollouts, scores 1 ?, 12 tokens: kept",
        "mixture     to train on",
        "group 2     stale, policy 3 to 4, scores 1 0, 30 tokens: 2 versions old",
        "group 8     trained at step 6, policy 3 to 4, scores 1 0, 30 tokens",
        "evaluation  before scores 0, after scores 1, after on quiz scores 0",
    ]


def test_episodes_are_told_turn_by_turn_once_for_each_policy(run):
    tables = {
        "rollouts": (
            ROLLOUTS,
            [rollout(ID, 1, 1.0), {**rollout(ID, 0, 0.0), **columns(HOSTILE, end=outcome(0.0, False))}],
        ),
        "evaluation_rollouts": (
            EVALUATION_ROLLOUTS,
            [{**answer("before", None), **columns("50", "75")}, answer("after", 1.0)],
        ),
    }
    for name, (schema, rows) in tables.items():
        write_table(run / f"{name}.parquet", build_table(rows, schema, name), schema)
    printed = CliRunner().invoke(rlvr, ["trace", ID, "--run", str(run)]).output.splitlines()
    assert printed[-9:] == [
        "evaluation  before scores ?, after scores 1",
        "episode     difficulty, sample 0, scores 0",
        "            ▸ assistant: <script>alert(1)</script>[2J </pre></li> 数",
        "            ■ reward 0 from the environment, not passed",
        "episode     before, sample 0, scores ?",
        "            ▸ assistant: 50",
        "              user: Higher.",
        "            ▸ assistant: 75",
        "            ■ the verifier judges the last turn",
    ]
    assert all(line.isprintable() for line in printed)


def test_a_row_is_found_by_its_source_whether_it_became_a_prompt_or_not(run):
    assert find_row(run, "products", 1) == find(run, ID)
    assert list(format_lines(find_row(run, "products", 5))) == [
        "set aside   row 5 of products by sourcing (malformed): no such column"
    ]
    assert "kept" not in " ".join(format_lines(find(run, SECOND["prompt_id"]))).replace("not kept", "")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda run: find(run, "ffff0000"), "no prompt whose id begins with 'ffff0000'"),
        (lambda run: find(run, "ff"), "give at least four digits"),
        (lambda run: find(run.parent, ID), r"contains no prompts\.parquet"),
        (lambda run: find_row(run, "products", 77), "nothing is known of row 77 of source 'products'"),
    ],
)
def test_what_is_not_there_is_named(run, ask, message):
    with pytest.raises(TraceError, match=message):
        ask(run)


def test_the_documented_query_gives_the_same(run, monkeypatch):
    monkeypatch.chdir(run)
    query = re.search(r"```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)[1].replace("3f9c", ID[:4])
    rows = duckdb.sql(query).fetchall()
    assert [(row[5], row[6], row[7]) for row in rows] == [(2, "stale", None), (8, "trained", 6)]
    assert rows[0][:5] == (ID, "products", 0.5, True, True)
