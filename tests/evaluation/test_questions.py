"""The questions of a benchmark with the responses of policies, and those whose pass rate changed."""

import pytest
from click.testing import CliRunner

from tasks.commands.group import rlvr
from tasks.evaluation.questions import Question, format_question, read_questions
from tasks.failures import MistakeError
from tasks.tables.parquet import build_table, read_table, write_table
from tasks.tables.schemas import EVALUATION_PROMPTS, EVALUATION_ROLLOUTS
from tests.evaluation.test_policy_comparison import rollouts
from tests.excerpts.shown import HOSTILE, as_episodes, outcome

QUESTIONS = ("a", "b", "c")


@pytest.fixture
def run(tmp_path):
    """A run whose policies answered three questions: one gets better, one worse, and one was not judged at last."""
    prompts = [
        {
            "benchmark": "quiz",
            "prompt_id": name,
            "domain": "math",
            "source": "quiz",
            "row": row,
            "messages": [{"role": "user", "content": f"What is\n{name}?"}],
            "verifier": "math",
            "ground_truth": "null",
            "metadata": "{}",
            "cluster": None,
        }
        for row, name in enumerate(QUESTIONS)
    ]
    answers = [
        *rollouts("before", 10, "quiz", a=[0, 0, 1], b=[1], c=[0]).to_pylist(),
        *rollouts("after", 10, "quiz", a=[1, 1, 0], b=[0], c=[None]).to_pylist(),
    ]
    for name, rows, schema in (
        ("evaluation_prompts", prompts, EVALUATION_PROMPTS),
        ("evaluation_rollouts", [row | {"policy": _policy(i)} for i, row in enumerate(answers)], EVALUATION_ROLLOUTS),
    ):
        write_table(tmp_path / f"{name}.parquet", build_table(rows, schema, name), schema)
    return tmp_path


def _policy(number):
    return "before" if number < 5 else "after"


def test_a_question_flips_where_its_pass_rate_changes(run):
    asked = read_questions(run, "quiz")
    pair = ("before", "after")
    assert [question.pass_rate("before") for question in asked] == pytest.approx([1 / 3, 1, 0])
    assert [[question.has_flip(pair, flip) for question in asked] for flip in ("better", "worse", "any")] == [
        [True, False, False],
        [False, True, False],
        [True, True, False],
    ]


def test_a_question_is_printed_with_the_commonest_verdict(run):
    first, *_, last = read_questions(run, "quiz")
    assert list(format_question(first, ("before", "after"))) == [
        "a  quiz row 0  What is a?",
        "  before: 1 of 3 pass; sample 0 (expected 42): words",
        "  after: 2 of 3 pass; sample 0: words",
    ]
    assert list(format_question(last, ("after", "other"))) == [
        "c  quiz row 2  What is c?",
        "  after: no scored response (judge unreachable)",
        "  other: no scored response",
    ]


def shown(run, *options):
    done = CliRunner().invoke(rlvr, ["show", str(run), "--benchmark", "quiz", *options])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_the_end_of_a_long_response_begins_with_a_word_and_says_that_it_is_an_end(run):
    first, *_ = read_questions(run, "quiz")
    row = first.responses["before"][0] | {"response": "egg " * 60 + "into"}
    [_, line] = format_question(Question(first.prompt, {"before": [row]}), ["before"])
    assert line == f"  before: 0 of 1 pass; sample 0 (expected 42): […] {'egg ' * 49}into"


def test_the_worst_responses_have_text_source_row_and_reason(run):
    path = run / "evaluation_rollouts.parquet"
    rows = read_table(path, EVALUATION_ROLLOUTS).to_pylist()
    for number, row in enumerate(rows):
        row["response"] = f"line one\nsample {number}"
    write_table(path, build_table(rows, EVALUATION_ROLLOUTS, "rows"), EVALUATION_ROLLOUTS)
    assert shown(run, "--worst", "2") == [
        "a  quiz row 0  What is a?",
        "  after: score 0; sample 2 (expected 42)",
        "    line one",
        "    sample 7",
        "b  quiz row 1  What is b?",
        "  after: score 0; sample 0 (expected 42)",
        "    line one",
        "    sample 8",
        "2 of 4 scored responses of after shown, lowest scores first; 1 could not be scored",
    ]
    assert shown(run, "--worst", "1", "--flipped", "worse")[0].startswith("b  ")
    done = CliRunner().invoke(rlvr, ["show", str(run), "--worst", "2", "--limit", "3"])
    assert done.exit_code == 2


def test_an_episode_is_printed_turn_by_turn(run):
    path = run / "evaluation_rollouts.parquet"
    episodes = as_episodes(read_table(path, EVALUATION_ROLLOUTS), "50", HOSTILE, end=outcome(0.5, False))
    write_table(path, episodes, EVALUATION_ROLLOUTS)
    lines_of_first = shown(run, "--flipped", "better")[1:6]
    assert lines_of_first == [
        "  before: 1 of 3 pass; sample 0 (expected 42)",
        "    ▸ assistant: 50",
        "      user: Higher.",
        "    ▸ assistant: <script>alert(1)</script>[2J </pre></li> 数",
        "    ■ cut off at a limit; reward 0.5 from the environment, not passed",
    ]


def test_no_response_moves_the_cursor(run):
    path = run / "evaluation_rollouts.parquet"
    rows = [
        row | {"response": HOSTILE, "answer": "\x1b[1m", "detail": "\x1b[3m" + "x" * 99}
        for row in read_table(path, EVALUATION_ROLLOUTS).to_pylist()
    ]
    write_table(path, build_table(rows, EVALUATION_ROLLOUTS, "rows"), EVALUATION_ROLLOUTS)
    printed = shown(run)
    assert all(line.isprintable() for line in printed)
    reason = f"[3m{'x' * 76} […]"
    verdict = f"  before: 1 of 3 pass; sample 0, answer [1m ({reason})"
    assert f"{verdict}: <script>alert(1)</script>[2J </pre></li> 数" in printed


def test_what_a_run_does_not_have_is_named(run, tmp_path):
    with pytest.raises(
        MistakeError, match=r"no benchmark is called 'quizz' \(did you mean 'quiz'\?\); there are: quiz"
    ):
        read_questions(run, "quizz")
    with pytest.raises(MistakeError, match=r"nowhere: no such folder"):
        read_questions(tmp_path / "nowhere", "quiz")
