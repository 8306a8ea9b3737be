"""`math`: which answer counts, and when it equals the reference."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.verifiers import mathematics
from tasks.verifiers.mathematics.warm_up import EQUAL_ANSWERS
from tasks.verifiers.scores import GroundTruthError
from tests.examples import examples


@pytest.fixture(scope="module", autouse=True)
def _warm():
    mathematics.warm_up()


@pytest.mark.long
@pytest.mark.parametrize(
    ("response", "form", "text"),
    [
        (r"first \boxed{1}, then \boxed{2}", "boxed", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", "boxed", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\left\{ 1, 2 \right\}}", "boxed", r"\left\{ 1, 2 \right\}"),
        (r"so \boxed {7} <answer>8</answer>", "boxed", "7"),
        (r"so \boxed 7.", "boxed", "7"),
        (r"so $\boxed7$", "boxed", "7"),
        (r"\boxed{1}; then \fbox{7}", "boxed", "7"),
        (r"\boxed{1}, or \fbox{7}", "boxed", "1, 7"),
        (r"\boxed{\text{a \{ b}}", "boxed", r"\text{a \{ b}"),
        (r"\boxed{7} and cut off \boxed{\frac{1", "boxed", "7"),
        (r"\boxed{} <answer>8</answer>", "tag", "8"),
        ("<answer>1</answer> no: <answer> 2 apples </answer>", "tag", "2"),
        ("<ANSWER>$x+1$</ANSWER>", "tag", "x+1"),
        ("<answer>9</answer> #### 8", "tag", "9"),
        ("half of 4 is 2\n#### 1,234", "hashes", "1,234"),
        ("The answer is 3. No. The final answer is 12 apples, of 20.", "phrase", "12"),
        ("The final answer is $\\frac{3}{4}$. I hope it is correct.", "phrase", r"\frac{3}{4}"),
        ("Final Answer: The final answer is $(1,2)$. I hope it is correct.", "phrase", "(1,2)"),
        ("Final Answer: 10 - 3 = 7", "phrase", "7"),
        ("**Answer:** 7\nThat was question 9.", "phrase", "7"),
        ("Final Answer: The largest $n$ is 34, which is even.", "phrase", "34"),
        ("Final Answer: Jane started 3 hours ago.", "phrase", "3"),
        ("The answer is 5, which is 1 more than 4.", "phrase", "5"),
        ("since $x=2$ we get $y=3$ in steps", "formula", "y=3"),
        ("since $x=2$ we get 3 in steps", "number", "3"),
        (r"hence \[ x^2 \] holds", "formula", "x^2"),
        (r"hence \( x^3 \) holds", "formula", "x^3"),
        (r"hence $ \frac{1}{2} $ or so, for $ 9 $ people", "formula", "9"),
        (
            r"hence \[ \begin{matrix} 1 \\[2pt] 2 \end{matrix} \] holds",
            "formula",
            r"\begin{matrix} 1 \\[2pt] 2 \end{matrix}",
        ),
        ("he pays $18 every day and $20 on Sunday", "number", "20"),
        ("it is 1,234.50 in all", "number", "1,234.50"),
        ("it drops to -7.", "number", "-7"),
        ("10-3", "expression", "10-3"),
        ("It is not\n\nYes", "line", "Yes"),
        ("2 of them.\n(C)", "line", "C"),
        ("three quarters: 3/4", "number", "3/4"),
        ("that is 50%", "number", "50%"),
        ("minus is \u22125", "number", "-5"),
        (r"<think>\boxed{1}</think> so 2", "number", "2"),
        (r"\boxed{1}</think> so 2", "number", "2"),
    ],
)
def test_answer_is_extracted_by_the_documented_order(response, form, text):
    assert mathematics.extract_answer(response) == mathematics.Answer(form, text)


@pytest.mark.parametrize("response", ["", "   ", "no idea", "<think> it is 7", r"\boxed{", "<answer></answer>"])
def test_response_without_an_answer_scores_0(response):
    score = mathematics.judge(response, "7")
    assert (score.value, score.passed, score.error) == (0.0, False, None)


def test_only_the_end_of_a_response_is_read():
    flood = "x " * mathematics.MAX_CHARS
    assert mathematics.judge(r"\boxed{7}" + flood, "7").value == 0.0
    assert mathematics.judge(flood + r"\boxed{7}", "7").value == 1.0


def test_one_reference_of_a_list_must_match():
    assert mathematics.judge("it is 7", ["6", "7"]).passed
    assert not mathematics.judge("it is 8", ["6", "7"]).passed


@pytest.mark.parametrize("ground_truth", [None, 7, "", " $ ", [], ["7", ""], ["7", 8], {"result": "7"}, "9" * 5000])
def test_malformed_ground_truth_is_named(ground_truth):
    with pytest.raises(GroundTruthError, match="malformed ground truth"):
        mathematics.check_ground_truth(ground_truth)


def gold_of(row):
    return row["answer"].split("####")[1].strip()


def shifted(gold):
    """Two wrong answers: one more, and the last digit changed."""
    value = int(gold.replace(",", ""))
    return [str(value + 1), gold[:-1] + str((int(gold[-1]) + 3) % 10)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "count"),
    [("gsm8k_test.jsonl", 1_319), pytest.param("gsm8k_train.jsonl", 7_473, marks=pytest.mark.complete)],
)
def test_gsm8k_gold_solutions_score_1_and_shifted_answers_0_on_all_rows(rows, file, count):
    data = rows(file)
    assert len(data) == count
    for row in data:
        gold = gold_of(row)
        for ground_truth in (gold, {"answer": gold, "mode": "gsm8k"}):
            assert mathematics.judge(row["answer"], ground_truth).value == 1.0, json.dumps(row)
        for wrong in shifted(gold):
            assert mathematics.judge(row["answer"], wrong).value == 0.0, json.dumps(row)
            assert mathematics.judge(row["answer"], {"answer": wrong, "mode": "gsm8k"}).value == 0.0, json.dumps(row)
            assert mathematics.judge(rf"{row['answer']} so \boxed{{{wrong}}}", gold).value == 0.0, json.dumps(row)


@pytest.mark.parametrize("form", [r"so \boxed{{{gold}}}", "The answer is ${gold}.", "<answer>{gold} m</answer>"])
def test_gsm8k_answers_score_1_in_every_form(rows, form):
    for row in rows("gsm8k_test.jsonl"):
        gold = gold_of(row)
        assert mathematics.judge(form.format(gold=gold), gold).value == 1.0, json.dumps(row)
        assert mathematics.judge(form.format(gold=shifted(gold)[0]), gold).value == 0.0, json.dumps(row)


PIECES = st.sampled_from(
    ["\\boxed{", "}", "{", "<answer>", "</answer>", "$", "$$", "\\[", "\\]", "\\", "####", "answer is", "=", "1,234"]
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(PIECES | st.text(max_size=8), max_size=30).map("".join))
def test_no_text_breaks_the_extraction(response):
    answer = mathematics.extract_answer(response)
    assert answer is None or answer.text.strip()


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(-(10**9), 10**9), st.sampled_from(["{}", "\\boxed{{{}}}", "the answer is {}", "<answer>{}</answer>"])
)
def test_an_integer_is_found_in_every_form(number, form):
    assert mathematics.judge(form.format(number), str(number)).passed
    assert not mathematics.judge(form.format(number), str(number + 1)).passed


def test_what_a_process_warms_up_with_is_equal():
    assert [pair for pair in EQUAL_ANSWERS if not mathematics.is_equivalent(*pair)] == []


@pytest.mark.long
def test_a_process_without_an_environment_files_or_network_judges():
    """As the workers are that judge: with threads, and without leave to fork, to write or to connect."""
    program = """
import resource, sys
sys.path[:0] = PATH
from tasks.verifiers import mathematics
def refuse(event, arguments):
    written = event == "open" and isinstance(arguments[2], int) and arguments[2] & 3
    assert not written and event not in ("socket.connect", "os.fork", "os.mkdir", "subprocess.Popen"), event
mathematics.warm_up()
sys.addaudithook(refuse)
assert resource.getrusage(resource.RUSAGE_SELF).ru_utime < 10
assert mathematics.judge(r"\\boxed{\\frac{14}{2}}", "7").passed
assert mathematics.judge(r"\\boxed{(x+1)^2}", "x^2+2x+1").passed
"""
    done = subprocess.run(
        [sys.executable, "-c", f"PATH = {sys.path!r}\n{program}"], env={}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
