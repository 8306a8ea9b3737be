"""`math`: which answer counts, and when it equals the reference."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.verifiers import mathematics
from tasks.verifiers.scores import GroundTruthError


@pytest.fixture(scope="module", autouse=True)
def _warm():
    mathematics.warm_up()


@pytest.mark.parametrize(
    ("response", "form", "text"),
    [
        (r"first \boxed{1}, then \boxed{2}", "boxed", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", "boxed", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\left\{ 1, 2 \right\}}", "boxed", r"\left\{ 1, 2 \right\}"),
        (r"so \boxed {7} <answer>8</answer>", "boxed", "7"),
        (r"\boxed{7} and cut off \boxed{\frac{1", "boxed", "7"),
        (r"\boxed{} <answer>8</answer>", "tag", "8"),
        ("<answer>1</answer> no: <answer> 2 apples </answer>", "tag", "2"),
        ("<ANSWER>$x+1$</ANSWER>", "tag", "x+1"),
        ("<answer>9</answer> #### 8", "tag", "9"),
        ("half of 4 is 2\n#### 1,234", "hashes", "1,234"),
        ("The answer is 3. No. The final answer is 12 apples, of 20.", "phrase", "12"),
        ("The final answer is $\\frac{3}{4}$. I hope it is correct.", "phrase", r"\frac{3}{4}"),
        ("Final Answer: 10 - 3 = 7", "phrase", "7"),
        ("**Answer:** 7\nThat was question 9.", "phrase", "7"),
        ("since $x=2$ we get $y=3$, 1 step", "formula", "y=3"),
        (r"hence \[ x^2 \] holds", "formula", "x^2"),
        (r"hence \( x^3 \) holds", "formula", "x^3"),
        ("he pays $18 every day and $20 on Sunday", "number", "20"),
        ("it is 1,234.50 in all", "number", "1,234.50"),
        ("it drops to -7.", "number", "-7"),
        ("10-3", "number", "3"),
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


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("7", "7"),
        ("7.0", "7"),
        ("$1,234$", "1234"),
        ("x = 1,234", "1234"),
        (r"1{,}234", "1234"),
        (r"\frac{1}{2}", "0.5"),
        (r"\frac12", "2/4"),
        ("0.333333", "1/3"),
        (r"50\%", "0.5"),
        (r"\$18", "18"),
        (r"5\text{ cm}", "5"),
        (r"90^\circ", "90"),
        (r"3\sqrt{2}", r"\sqrt{18}"),
        ("2^{10}", "1024"),
        ("(x+1)^2", "x^2+2x+1"),
        ("x=5", "5"),
        (r"\{1,2\}", r"\{2,1\}"),
        ("[1,2)", r"\left[1, 2\right)"),
        ("(1,2)", "(1, 2)"),
        ("x<3", "x < 3"),
        ("3+4i", "4i+3"),
        (r"\text{Tuesday}", "tuesday"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ],
)
def test_equal_answers_are_equal(answer, reference):
    assert mathematics.equivalent(answer, reference)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("7", "8"),
        ("-7", "7"),
        ("0.33", "1/3"),
        (r"\frac{1}{2}", r"\frac{2}{1}"),
        ("[1,2]", "[1,2)"),
        (r"\{1,2\}", r"\{1,2,3\}"),
        ("live", "evil"),
        ("x+1", "x+2"),
        ("", "0"),
        ("1/0", "0"),
    ],
)
def test_different_answers_differ(answer, reference):
    assert not mathematics.equivalent(answer, reference)


def test_one_reference_of_a_list_must_match():
    assert mathematics.judge("it is 7", ["6", "7"]).passed
    assert not mathematics.judge("it is 8", ["6", "7"]).passed


@pytest.mark.parametrize("ground_truth", [None, 7, "", " $ ", [], ["7", ""], ["7", 8], {"answer": "7"}, "9" * 5000])
def test_malformed_ground_truth_is_named(ground_truth):
    with pytest.raises(GroundTruthError, match="malformed ground truth"):
        mathematics.check_ground_truth(ground_truth)


@pytest.mark.parametrize(
    "form", ["{solution}", r"so \boxed{{{gold}}}", "The answer is ${gold}.", "<answer>{gold} m</answer>"]
)
def test_gsm8k_gold_scores_1_and_gold_plus_one_0(rows, form):
    for row in rows("gsm8k_test.jsonl") + rows("gsm8k_train.jsonl")[::10]:
        gold = row["answer"].split("####")[1].strip()
        response = form.format(solution=row["answer"], gold=gold)
        assert mathematics.judge(response, gold).value == 1.0, json.dumps(row)
        assert mathematics.judge(response, str(int(gold.replace(",", "")) + 1)).value == 0.0, json.dumps(row)


PIECES = st.sampled_from(
    ["\\boxed{", "}", "{", "<answer>", "</answer>", "$", "$$", "\\[", "\\]", "\\", "####", "answer is", "=", "1,234"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=8), max_size=30).map("".join))
def test_no_text_breaks_the_extraction(response):
    answer = mathematics.extract_answer(response)
    assert answer is None or answer.text.strip()


@settings(max_examples=200, deadline=None)
@given(
    st.integers(-(10**9), 10**9), st.sampled_from(["{}", "\\boxed{{{}}}", "the answer is {}", "<answer>{}</answer>"])
)
def test_an_integer_is_found_in_every_form(number, form):
    assert mathematics.judge(form.format(number), str(number)).passed
    assert not mathematics.judge(form.format(number), str(number + 1)).passed
