"""The page of a benchmark: every question with its verdicts, harmless, of bounded size, with filters."""

import re

import pyarrow as pa
import pytest

from tasks.evaluation.pages.page import BenchmarkPages
from tasks.evaluation.pages.selection import MOST_RESPONSES, PER_VERDICT, select
from tasks.evaluation.questions import Question
from tasks.tables.schemas import EVALUATION_ROLLOUTS
from tests.evaluation.test_policy_comparison import prompts, rollouts
from tests.excerpts.shown import as_episodes, outcome
from tests.reporting.reader import Reader
from tests.reporting.test_page import Page

PAIRS = [("after", "before"), ("other", "before")]
HOSTILE = "<script>alert(1)</script>'\"&</pre></article> 数"


def answers(policy, responses=(), **scores):
    """A policy's rollouts of a quiz, without its name; `responses` replaces the text of all of them."""
    table = rollouts(policy, 10, "quiz", **scores)
    if responses:
        texts = pa.array([responses[row % len(responses)] for row in range(table.num_rows)], pa.large_string())
        table = table.set_column(table.schema.get_field_index("response"), "response", texts)
    return table.cast(EVALUATION_ROLLOUTS)


def page_of(folder, policies, asked):
    pages = BenchmarkPages(
        {"quiz": asked}, {name: table.drop_columns("response") for name, table in policies.items()}, PAIRS
    )
    for name, table in policies.items():
        for start in range(0, table.num_rows, 7):
            pages.read(name, table.slice(start, 7))
    return (pages.write(folder / "benchmarks") / "quiz.html").read_text()


@pytest.fixture(scope="module")
def policies():
    """A question that gets better and worse again, one that gets worse, one that stays, and one that is not scored."""
    return {
        "before": answers("x", a=[0, 0, 1], b=[1], c=[1], d=[0]),
        "after": answers("y", [HOSTILE], a=[1, 1, 0], b=[0], c=[1], d=[None]),
        "other": answers("z", a=[0, 0, 0], b=[0], c=[1], d=[0]),
    }


@pytest.fixture(scope="module")
def page(policies, tmp_path_factory):
    return page_of(tmp_path_factory.mktemp("run"), policies, prompts(a="math", b="math", c="code", d="math"))


def test_every_question_has_the_responses_of_every_policy(page):
    lines = [" ".join(line.split()) for line in Reader(page).lines]
    assert "1 row 0 of test · math · a after better than before other worse than before" in lines
    passed = [line for line in lines if re.fullmatch(r"(before|after|other) (\d of \d pass|no .* scored)", line)]
    assert passed[:3] == ["before 1 of 3 pass", "after 2 of 3 pass", "other 0 of 3 pass"]
    assert passed[9:] == ["before 0 of 1 pass", "after no response could be scored", "other 0 of 1 pass"]
    assert "judge unreachable" in lines
    assert lines.count("expected 42") == 10  # every response that failed
    assert "passes sample 2 · score 1 · 12 tokens" in lines
    assert "fails sample 0 · score 0 · 10 tokens, cut at the limit" in lines


def test_filters_choose_the_questions_that_changed(page):
    articles = dict(zip("abcd", re.findall(r'<article class="([^"]*)"', page), strict=True))
    assert articles == {
        "a": "c0-better c1-worse",
        "b": "c0-worse c1-worse",
        "c": "c0-same c1-same",
        "d": "c0-unknown c1-same",
    }
    for name in ("c0-better", "c0-worse", "c1-better", "c1-worse"):
        assert f'<input type="radio" name="show" id="{name}">' in page
        assert f"body:has(#{name}:checked) article:not(.{name}) {{ display: none; }}" in page
    assert "changed for worse, 2</label>" in page
    assert "1 the same, 1 without a scored response of both" in page


def test_hostile_responses_are_harmless_and_the_page_is_whole(page):
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe", "object"} & set(parsed.tags)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&#39;&#34;&amp;&lt;/pre&gt;&lt;/article&gt; 数" in page
    assert not re.findall(r"https?://", page)
    assert 'href="../report.html"' in page


def test_an_episode_is_shown_turn_by_turn_beside_single_responses(policies, tmp_path):
    after = as_episodes(policies["after"], "50", HOSTILE, end=outcome(0.5, False))
    page = page_of(tmp_path, {**policies, "after": after}, prompts(a="math", b="math", c="code", d="math"))
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe", "object"} & set(parsed.tags)
    assert page.count('<ol class="episode">') == after.num_rows == 6
    assert page.count("<small>inserted</small><pre>Higher.</pre>") == 6
    assert page.count("<small>sampled</small>") == 12
    assert page.count("reward 0.5 from the environment, not passed</li>") == 6
    assert page.count("<pre>words</pre></details>") == policies["before"].num_rows + policies["other"].num_rows
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&#39;&#34;&amp;&lt;/pre&gt;&lt;/article&gt; 数</pre></li>" in page


def test_equal_tables_give_equal_bytes(page, policies, tmp_path):
    asked = prompts(a="math", b="math", c="code", d="math")
    shuffled = {name: table.take(list(reversed(range(table.num_rows)))) for name, table in policies.items()}
    assert page_of(tmp_path, shuffled, asked) == page


def question(**policies):
    rows = {
        name: [{"sample": i, "passed": None if passed is None else bool(passed)} for i, passed in enumerate(verdicts)]
        for name, verdicts in policies.items()
    }
    return Question({}, rows)


def test_the_first_responses_of_every_verdict_are_shown():
    asked = [question(before=[0] * 10 + [1, None] * 10, after=[0])]
    selection = select(asked, ["before", "after"], [("after", "before")])
    [shown] = selection.shown
    samples = [row["sample"] for row in shown.responses["before"]]
    assert PER_VERDICT == 4
    assert samples == [0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17]
    assert (selection.responses_left_out, selection.questions_left_out) == (30 - 12, 0)


def test_questions_that_changed_come_before_others_and_stand_in_their_order():
    count = MOST_RESPONSES  # of two responses each, so that half of them have room
    asked = [question(before=[0], after=[i % 4 == 3]) for i in range(count)]
    selection = select(asked, ["before", "after"], [("after", "before")])
    assert selection.questions_left_out == count // 2
    numbers = [shown.number for shown in selection.shown]
    assert numbers == sorted(numbers)
    assert set(range(4, count + 1, 4)) <= set(numbers)
    unchanged = [number for number in numbers if number % 4]
    assert unchanged == [number for number in range(1, count + 1) if number % 4][: len(unchanged)]
    assert selection.changes["after", "before"] == {"better": count // 4, "same": count - count // 4}


@pytest.mark.long
@pytest.mark.parametrize(
    ("questions", "samples", "text"),
    [(1319, 1, "a long thought. " * 2_000), (30, 32, "<'数" * 20_000), (6000, 1, "<" * 3_000), (1, 5_000, "'" * 5_000)],
    ids=["gsm8k", "aime", "more than fit", "one question"],
)
def test_a_page_is_bounded_and_says_what_it_leaves_out(questions, samples, text, tmp_path):
    names = [f"{number:032x}" for number in range(questions)]
    scores = {name: [(number + sample) % 3 == 0 for sample in range(samples)] for number, name in enumerate(names)}
    policies = {name: answers(name, [text], **scores) for name in ("before", "after", "other")}
    page = page_of(tmp_path, policies, prompts(**dict.fromkeys(names, "math")))
    assert len(page.encode()) < 5_000_000
    assert ("characters left out" in page) == (questions > 1)
    assert ("This page leaves out" in page) == (questions == 6000 or samples > 1)
    if questions == 6000:
        assert f"{questions - page.count('<article'):,} of 6,000 questions" in page
        assert page.count("<article") == MOST_RESPONSES // 3


@pytest.mark.long
@pytest.mark.parametrize(("questions", "turns"), [(1319, 3), (300, 60), (1, 1)])
def test_a_page_of_episodes_is_bounded(questions, turns, tmp_path):
    names = [f"{number:032x}" for number in range(questions)]
    table = as_episodes(answers("x", **{name: [name[-1] < "8"] for name in names}), *["<'数" * 1_000] * turns)
    page = page_of(
        tmp_path, dict.fromkeys(("before", "after", "other"), table), prompts(**dict.fromkeys(names, "math"))
    )
    assert len(page.encode()) < 5_000_000
    assert page.count('<ol class="episode">') == 3 * questions
    assert ("turns left out" in page) == (turns > 3 or questions > 1)
    assert ("characters left out" in page) == (questions > 1)
