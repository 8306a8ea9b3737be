"""`math`: what a ground truth may ask for, and what each mode reads and compares."""

import pytest

from tasks.verifiers import check_ground_truth, mathematics
from tasks.verifiers.scores import GroundTruthError


def passed(response, answer, mode):
    return mathematics.judge(response, {"answer": answer, "mode": mode}).passed


@pytest.mark.parametrize(
    ("ground_truth", "named"),
    [
        ({"answer": "7", "mode": "fuzzy"}, "mode is 'fuzzy'; accepted: sympy, gsm8k, exact"),
        ({"answer": "7", "mode": None}, "mode is None; accepted: sympy, gsm8k, exact"),
        ({"answer": "7", "mode": ["exact"]}, r"mode is \['exact'\]; accepted"),
        (
            {"answer": "7", "tolerance": 1, "Mode": "exact"},
            r"unknown keys \['Mode', 'tolerance'\]; accepted: answer, mode",
        ),
        ({"answer": "7", 3: 1}, r"unknown keys \['3'\]"),
        ({"mode": "exact"}, "expected an object with 'answer'"),
        ({}, "expected an object with 'answer'"),
        ({"answer": [], "mode": "exact"}, "the list of accepted answers is empty"),
        ({"answer": 7}, "expected a non-empty string"),
        ({"answer": ["7", " "]}, "expected a non-empty string"),
        ({"answer": {"answer": "7"}}, "expected a non-empty string"),
        ({"answer": "seven", "mode": "gsm8k"}, "mode gsm8k expects a number, got 'seven'"),
        ({"answer": ["7", "1/2 or 3"], "mode": "gsm8k"}, "mode gsm8k expects a number"),
    ],
)
def test_malformed_ground_truth_names_the_key_or_mode(ground_truth, named):
    with pytest.raises(GroundTruthError, match=named):
        mathematics.check_ground_truth(ground_truth)
    assert "malformed ground truth" in check_ground_truth("math", ground_truth)


@pytest.mark.parametrize("answer", ["7", ["6", "7"]])
@pytest.mark.parametrize(
    "ground_truth", [lambda a: a, lambda a: {"answer": a}, lambda a: {"answer": a, "mode": "sympy"}]
)
def test_the_default_mode_is_sympy(ground_truth, answer):
    assert mathematics.judge(r"\boxed{\frac{14}{2}}", ground_truth(answer)).passed
    assert not mathematics.judge(r"\boxed{\frac{15}{2}}", ground_truth(answer)).passed


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("half of 4 is 2\n#### 2", "2", True),
        ("#### 1,234", "1234", True),
        ("#### 1234", "1,234", True),
        ("#### $1,234.00", "1234", True),
        ("#### 72.0", "72", True),
        ("#### -5", "-5", True),
        ("#### -5", "5", False),
        ("it costs 18 dollars, not 20", "20", True),
        ("it costs 18 dollars, not 20.", "18", False),
        ("10-3", "3", False),
        ("it drops to -$3", "-3", True),
        (r"\boxed{7} of 9", "9", False),
        (r"\boxed{7} of 9", "7", True),
        (r"He pays 9. So \boxed{ 42 }", "42", True),
        (r"He pays 9. So $\boxed{42}$", "9", False),
        (r"$50 - $20 is $$\boxed{30}$$", "30", True),
        (r"$50 - $20 is $$\boxed{30}$$", "20", False),
        (r"\boxed{\$1,234.50}", "1234.5", True),
        (r"\boxed{18 \text{ dollars}}", "18", True),
        (r"\boxed{5 + 3 = 8}", "8", True),
        (r"\boxed{\frac{1}{2}}", "2", False),
        (r"\boxed{\frac{1}{2}}", "0.5", True),
        (r"\boxed{-5}", "-5", True),
        (r"\boxed{18 \text{ apples and } 3 \text{ pears}}", "3", False),
        ("\\boxed{3} first\n#### 18", "18", True),
        (r"#### {18}", "18", True),
        (r"#### \boxed{18}", "18", True),
        (r"\text{72}", "72", True),
        ("#### 5\nI checked 3 times.", "5", True),
        ("#### 5\nI checked 3 times.", "3", False),
        ("it makes 10 000", "10000", True),
        ("it makes 10 000", "0", False),
        ("a change of negative 5", "-5", True),
        ("4 by 5 is 20m\u00b2", "20", True),
        ("3/4", "4", False),
        ("#### 3 of 4", "4", True),
        ("4\n#### ", "4", False),
        ("<think>#### 4</think> so 5", "4", False),
        ("none", "4", False),
        ("", "4", False),
        ("0.5000001", "0.5", False),
        # a piece of an expression is no number
        ("#### 3/4", "4", False),
        ("#### 3/4", "0.75", True),
        (r"#### \frac{3}{4}", "0.75", True),
        ("#### 1 1/2", "2", False),
        ("#### 1 1/2", "1.5", True),
        ("#### 2^5", "5", False),
        ("#### sqrt(16)", "16", False),
        ("#### 10 - 3", "3", False),
        ("#### 2 x 3", "3", False),
        (r"\boxed{5!}", "5", False),
        ("#### 96!", "96", True),
        ("#### 5 million", "5", False),
        ("#### 5 million dollars", "5000000", True),
        ("#### 7 hundredths", "7", False),
        ("#### 7 below zero", "7", False),
        (r"\boxed{7 \text{ less}}", "7", False),
        ("at 3:30", "30", False),
        ("she pays $30/hour", "30", True),
        ("it is **5**", "5", True),
        ("#### five apples", "5", True),
    ],
)
def test_gsm8k_compares_the_last_number_after_the_hashes_or_of_the_box_or_of_all(response, answer, expected):
    assert passed(response, answer, "gsm8k") == expected


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("<answer>12 Apples</answer>", "12 apples", True),
        ("<answer> 12\n  apples </answer>", "12apples", True),
        ("<answer>12 apples</answer>", "12", False),
        (r"\boxed{x+1}", "X + 1", True),
        (r"\boxed{1+x}", "x+1", False),
        (r"\boxed{0.5}", "1/2", False),
        ("The answer is the Big Apple.", "the big apple", True),
        ("The answer is $x$.", "x", True),
        ("#### Yes", "yes", True),
        ("<answer>-5</answer>", "5", False),
        ("<answer>a cat</answer>", "cat", False),
        ("<answer>STRASSE</answer>", "stra\u00dfe", True),
        ("nothing stated", "nothing stated", False),
        ("<answer>caf\u00e9</answer>", "cafe\u0301", True),
        ("<answer>CAFE\u0301</answer>", "caf\u00e9", True),
        ("<answer>cafe</answer>", "caf\u00e9", False),
        ("Answer: **yes**", "yes", True),
    ],
)
def test_exact_compares_the_whole_answer_as_text(response, answer, expected):
    assert passed(response, answer, "exact") == expected


def test_one_of_several_answers_must_match_in_every_mode():
    for mode in ("sympy", "gsm8k", "exact"):
        assert passed("#### 7", ["6", "7"], mode)
        assert not passed("#### 8", ["6", "7"], mode)
