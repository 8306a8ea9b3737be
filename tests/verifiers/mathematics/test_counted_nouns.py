"""`math`: nouns behind a number, which may be left out, and words that make it another number.

Each row is an answer, a reference and whether the answer earns the reward.
"""

import pytest

from tasks.verifiers import mathematics
from tasks.verifiers.mathematics.number_words import convert_to_digits

COUNTED = {
    "nouns that only name what is counted": [
        ("7 apples", "7", True), ("7 red apples", "7", True), ("7 cups of sugar", "7", True),
        ("7 people", "7", True), ("7 goldfish", "7", True), ("7 grandchildren", "7", True),
        ("7 in total", "7", True), ("7 left", "7", True), ("7 apples per day", "7", True),
        ("7 years old", "7", True), ("7 minutes faster", "7", True), ("7", "7 apples", True),
        ("1 apple", "1", True), ("0 solutions", "0", True), (r"\frac{3}{4} \text{ cup}", "3/4", True),
        ("7 sixth graders", "7", True), ("7 two-digit numbers", "7", True), ("7 men with beards", "7", True),
        (r"2^{10} \text{ ways}", "1024", True), ("12 chocolate chip cookies", "12", True),
        ("5 more apples", "5", True), ("8 apples", "7", False),
    ],
    "words that change the number before them": [
        ("7 hundredths", "7", False), ("7 tenths", "7", False), ("7 thousandths", "7", False),
        ("7 twelfths", "7", False), ("7 lakh", "7", False), ("7 crore", "7", False), ("7 lakh rupees", "7", False),
        ("7 score", "7", False), ("7 gross", "7", False), ("7 dozen eggs", "7", False),
        ("7 below zero", "7", False), ("7 less", "7", False), ("7 point five", "7", False),
        ("7 modulo nine", "7", False), ("7 remainder two", "7", False), ("7 minus one", "7", False),
        ("7 squared meters", "7", False), ("7 half hours", "7", False), ("7 and a half", "7", False),
        ("7 parts per million", "7", False), ("7 degrees below zero", "7", False),
        ("7 hundredths of a mile", "7", False), ("1 tenth", "1", False), ("1 lakh", "1", False),
        ("7 wan", "7", False), ("7 basis points", "7", False), ("7 to the fourth", "7", False),
        ("7 -m-m-m", "7", False),
    ],
    "what these words make of it": [
        ("7 hundredths", "0.07", True), ("7 tenths", "0.7", True), ("7 lakh rupees", "700000", True),
        ("7 crore", "7e7", True), ("7 dozen eggs", "84", True), ("7 twelfths", "7/12", True),
    ],
    "numbers in words": [
        ("seven", "7", True), (r"\text{Seven apples}", "7", True), ("7", "seven", True), ("twenty-one", "21", True),
        ("three quarters", "3/4", True), ("seven point five", "7.5", True), ("ten percent", "10%", True),
        ("minus two thirds", "-2/3", True), ("one hundred and five", "105", True), ("one way", "1", True),
        ("half", "1/2", True), ("a quarter", "1/4", True),
        ("3", "Three Musketeers", False), ("three musketeers", "Three Musketeers", True),
        ("two and a half", "2.5", True), ("5 and a half", "5.5", True), ("5 and a half", "5", False),
        ("half of them", "1/2", False), ("seventy", "7", False), ("seven hundred", "7", False),
        ("seven hundredths", "7", False),
        ("seven five", "7", False), ("seven or eight", "7", False), ("six times seven", "6", False),
        ("minus seven", "7", False),
    ],
    "decimals that go on": [
        ("0.333...", "1/3", True), ("0.1666...", "1/6", True), (r"0.142857142857\ldots", "1/7", True),
        ("0.333\u2026", r"0.\overline{3}", True), ("0.333...", "0.333", False), ("0.3...", "1/3", False),
        ("3.14...", r"\pi", False), ("0.33", "1/3", False),
    ],
}  # fmt: skip

IN_RESPONSES = [
    ("The answer is 7 hundredths.", "7", False), ("It is 7 lakh.", "7", False), ("It is 7 below zero.", "7", False),
    ("It is 7 point five.", "7", False), ("The answer is 7 remainder 2", "7", False),
    ("It makes 76 sixth graders.", "76", True), ("The answer is seven.", "7", True),
    ("The answer is seven apples.", "7", True), ("There are 7 left.", "7", True),
    ("He has 3 less than she does.", "3", True),
]  # fmt: skip


def rows_of(table):
    return [pytest.param(*row, id=f"{group}:{row[0]}~{row[1]}") for group, rows in table.items() for row in rows]


@pytest.mark.parametrize(("answer", "reference", "passes"), rows_of(COUNTED))
def test_a_noun_is_left_out_only_where_it_cannot_change_the_number(answer, reference, passes):
    assert mathematics.judge(rf"So it is $\boxed{{{answer}}}$.", reference).passed == passes


@pytest.mark.parametrize(("response", "reference", "passes"), IN_RESPONSES)
def test_so_it_is_in_plain_text(response, reference, passes):
    assert mathematics.judge(response, reference).passed == passes


@pytest.mark.parametrize(
    ("words", "digits"),
    [
        ("zero", "0"),
        ("nineteen", "19"),
        ("ninety-nine", "99"),
        ("two hundred", "200"),
        ("two thousand and twenty four", "2024"),
        ("three million two hundred thousand five", "3200005"),
        ("nine hundred ninety-nine thousand nine hundred ninety-nine", "999999"),
        ("minus two thirds", "-2/3"),
        ("seven hundredths of a mile", "7/100 of a mile"),
        ("seven point two five", "7.25"),
        ("seven point", "7 point"),
        ("one thousand thousand", "1000 thousand"),
        ("ten, twenty", "ten, twenty"),
        ("tennis", "tennis"),
    ],
)
def test_numbers_in_words_by_hand(words, digits):
    assert convert_to_digits(words) == digits
