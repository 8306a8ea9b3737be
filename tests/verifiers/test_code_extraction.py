"""Which part of a response is the program, and how two outputs are compared."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.verifiers.code.extraction import extract_program
from tasks.verifiers.code.running import same_output

PIECES = ["```", "````", "~~~", "python", "py", "Python3", "\n", " ", "    ", "print(1)", "<think>", "</think>", "`"]
GUARD_S = 20.0


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```py\nx = 1\n```\nthen\n```Python3\nx = 2\n```\nand\n```\nx = 3\n```", "x = 2\n"),
        ("```\nx = 1\n```\n```cpp\nint x;\n```", "x = 1\n"),
        ("```cpp\nint x;\n```", None),
        ("```python\nx = 1\n```\n```python\n\n```", "x = 1\n"),
        ("```python\nx = '''\n```\n'''\n````", "x = '''\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("~~~python\nx = '```'\n~~~", "x = '```'\n"),
        ("  ```python title=x\nx = 1\n  ```", "x = 1\n"),
        ("text\n```python\nx = 1\ny =", "x = 1\ny ="),
        ("<think>\n```python\nx = 1\n```\n</think>\n```python\nx = 2\n```", "x = 2\n"),
        ("<think>\n```python\nx = 1\n```", None),
        ("def f():\n    return 1", "def f():\n    return 1"),
        ("The answer is 7.", "The answer is 7."),
        ("", None),
        ("```", None),
    ],
)
def test_the_last_block_of_python_is_the_program(response, program):
    assert extract_program(response) == program


@given(st.one_of(st.text(max_size=300), st.lists(st.sampled_from(PIECES), max_size=60).map("".join)))
def test_extraction_never_raises(response):
    assert extract_program(response) is None or extract_program(response) in response


@pytest.mark.parametrize(
    "response",
    [
        "```" + " " * 300_000 + "`",
        "```" + "a" * 300_000 + "`",
        "`" * 1_000_000,
        "```\n" * 200_000,
        "~~~" + "~ " * 300_000,
        "<think>" * 100_000,
        "(" * 300_000,
        "-" * 300_000 + "1",
        "a" + ".b" * 300_000,
    ],
    ids=range(9),
)
def test_extraction_takes_no_more_than_linear_time(response):
    began = time.monotonic()
    extract_program(response)
    assert time.monotonic() - began < GUARD_S


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("1\n2\n", "1\n2", True),
        ("1 \r\n2\n\n\n", "1\n2\n", True),
        ("1\n\n2", "1\n2", False),
        ("1  2", "1 2", True),
        ("  1", "1", True),
        ("1.0 1e3 -0", "1 1000 0", True),
        ("0.1", "0.10000000000000001", False),
        ("nan", "nan", True),
        ("nan", "NaN", False),
        ("sNaN", "1", False),
        ("yes", "Yes", False),
        ("", "\n", True),
        ("", "0", False),
        ("1\n1", "1", False),
        ("1 2", "1\n2", False),
        ("9" * 100_000, "8" * 100_000, False),
        ("1e999999999", "1", False),
    ],
)
def test_outputs_agree_by_lines_and_words_and_numbers_by_value(found, expected, same):
    assert same_output(found, expected) is same


@settings(max_examples=300)
@given(st.text(max_size=200), st.text(max_size=200))
def test_comparing_never_raises_and_does_not_depend_on_the_order(found, expected):
    assert same_output(found, expected) == same_output(expected, found)
    assert same_output(found, found)
    assert same_output(found + " \n\n", found)


@given(st.lists(st.one_of(st.integers(), st.decimals()), max_size=9))
def test_numbers_agree_with_themselves_however_they_are_spaced(numbers):
    words = [str(number) for number in numbers]
    assert same_output("  ".join(words), " ".join(words))
