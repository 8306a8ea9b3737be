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
        # indented as in a list
        ("- Like this:\n\n    ```python\n    if x:\n        y\n    ```\n- done", "if x:\n    y\n"),
        ("2. ```py\n   x = '''\n a\n   '''\n   ```", "x = '''\na\n'''\n"),
        ("\t```python\n\tx = 1\n\t```", "x = 1\n"),
        ("```python\nx = '''\n     ```\n'''\n```", "x = '''\n     ```\n'''\n"),
        # behind words
        ("Like this: ```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("Like this: ```\nx = 1\n```", "x = 1\n"),
        ("Call `f`: ```python\nx = 1\n```", "x = 1\n"),
        ("In ``` fences:\n```python\nx = 1\n```", "x = 1\n"),
        ("Call `f` or ```g``` so:\n```\nx = 1\n```", "x = 1\n"),
        # a closing fence that nothing opened, or that code precedes on its line
        ("x = 1\n```", "x = 1\n"),
        ("x = 1\n```\nIt is one.", "x = 1\n"),
        ("x = 1\nprint(x)```\n", "x = 1\nprint(x)"),
        ("```python\nx = 1\nprint(x)```\nIt prints one.", "x = 1\nprint(x)"),
        ("```cpp\nint x;\n```\nx = 1\n```", "\nx = 1\n"),
        ("Solution\n```\nx = 1", "x = 1"),
        ("x = 1\n```\n```", "x = 1\n"),
        ("x = 1\n```python", "x = 1\n"),
        ("Like this.\n```\nThat is all.", "That is all."),
        # fences within strings
        (
            "def f():\n    '''\n    ```\n    f()\n    ```\n    '''",
            "def f():\n    '''\n    ```\n    f()\n    ```\n    '''",
        ),
    ],
)
def test_the_last_block_of_python_is_the_program(response, program):
    assert extract_program(response) == program


@given(st.one_of(st.text(max_size=300), st.lists(st.sampled_from(PIECES), max_size=60).map("".join)))
def test_extraction_never_raises(response):
    program = extract_program(response)
    assert program is None or all(line.strip() in response for line in program.splitlines())


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
