"""Which outputs agree, and that no way of writing numbers fools the comparison or costs it time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.verifiers.code.comparison import is_same_output
from tests.examples import examples

SAME = [
    ("", ""),
    ("", "\n"),
    ("yes", "yes\n"),
    ("a  b\r\n\tc\n\n", "a b\nc"),
    ("1 2 3", "1\n2\n3\n"),
    ("nan", "nan"),
    ("0101", "0101"),
    ("0.5", "0.50"),
    (".5", "0.5"),
    ("1", "1.0"),
    ("-0", "0.0"),
    ("+1.5", "1.5"),
    ("1e3", "1000.0"),
    ("0.333333", "0.3333333333"),
    ("0.3333343", "0.3333333333"),
    ("1000000.9", "1000000.0"),
    ("1e-7", "1e-07"),
    ("1000000", "1e+06"),
    ("0", "0.0000001"),
    ("9" * 300 + ".0", "9" * 300 + ".5"),
    ("\ud800", "\ud800"),
]
DIFFERENT = [
    ("", "0"),
    ("Yes", "yes"),
    ("1 2", "12"),
    ("1 2 3", "1 2"),
    ("0101", "101"),
    ("101", "0101"),
    ("00", "0"),
    ("+1", "1"),
    ("-0", "0"),
    ("1.0", "1"),
    ("1.", "1"),
    ("1e0", "1"),
    ("9007199254740993", "9007199254740992"),
    ("100000", "1e5"),
    ("482", "4.82e+03"),
    ("0.333331", "0.3333333333"),
    ("1000002.0", "1000000.0"),
    ("nan", "1.0"),
    ("nan", "nan.0"),
    ("inf", "1.0"),
    ("Infinity", "inf"),
    ("1e999", "1.0"),
    ("1e999", "1e+998"),
    ("1_000", "1000"),
    ("1_000.0", "1000.0"),
    ("\u0661", "1"),
    ("\u0661.0", "1.0"),
    ("\uff11.0", "1.0"),
    ("1\u00a02", "1 2"),
    ("1\x1c2", "1 2"),
    ("1\0", "1"),
    ("0x10", "16.0"),
    ("1.2.3", "1.2.30"),
    ("001.0", "1.0"),
    ("1,5", "1.5"),
    (".", "0.0"),
    ("", "0.0"),
    ("True", "1.0"),
]


@pytest.mark.parametrize(("actual", "expected"), SAME)
def test_outputs_agree(actual, expected):
    assert is_same_output(actual, expected)


@pytest.mark.parametrize(("actual", "expected"), DIFFERENT)
def test_outputs_differ(actual, expected):
    assert not is_same_output(actual, expected)


@pytest.mark.long
@pytest.mark.parametrize(
    "actual", ["1e999999999", "1e-999999999", "9" * 900_000, "0." + "3" * 900_000, "1" * 900 + "e999", "1 " * 400_000]
)
@pytest.mark.parametrize("expected", ["1.0", "7", "1e+308", "0.0", "1.0 " * 400_000])
def test_no_number_costs_time(actual, expected):
    began = time.process_time()
    assert is_same_output(actual, expected) == (actual[:2] == "1 " and expected[:4] == "1.0 ")
    assert time.process_time() - began < 3


@settings(max_examples=examples(300))
@given(st.text(max_size=200), st.text(max_size=200))
def test_comparing_never_raises_and_white_space_does_not_count(actual, expected):
    assert is_same_output(actual, expected) in (True, False)
    assert is_same_output(actual, actual)
    assert is_same_output(f"\n {actual} \n\n", actual)


@given(st.lists(st.one_of(st.integers(), st.decimals()), max_size=9))
def test_numbers_agree_with_themselves_however_they_are_spaced(numbers):
    words = [str(number) for number in numbers]
    assert is_same_output("  ".join(words), "\n".join(words))
