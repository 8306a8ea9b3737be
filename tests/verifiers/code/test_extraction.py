"""Which part of a response is the program, and how two outputs are compared."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.verifiers.code.extraction import extract_program

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
