"""Which part of a response is the program, and how two outputs are compared."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.verifiers.code.extraction import extract_program, find_used_names

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


PROGRAM = "def f(x):\n    return x + 1\n"
CASES = {"cases": [{"input": "1", "output": "2"}]}


def blocks(*contents):
    return "\n".join(f"```python\n{content}```" for content in contents)


@pytest.mark.parametrize(
    ("response", "ground_truth", "program"),
    [
        (blocks(PROGRAM, "print(f(1))\n"), {"tests": ["assert f(1) == 2"]}, PROGRAM),
        (blocks(PROGRAM, "f(1)  # 2\n"), {"tests": ["check(f)"], "setup": "def check(c):\n    assert c(1)"}, PROGRAM),
        (blocks(PROGRAM, "from it import f\nr = f(1)\n"), {"tests": ["r = f(1)\nassert r == 2"]}, PROGRAM),
        (blocks(PROGRAM, "assert f(1) == 2\n").replace("python", ""), {"tests": ["assert f(1) == 2"]}, PROGRAM),
        (f"```\n{PROGRAM}```\n" + blocks("f(1)\n"), {"tests": ["assert f(1) == 2"]}, PROGRAM),
        (blocks("class A:\n    pass\n", "A()\n"), {"tests": ["assert A().b == 2"]}, "class A:\n    pass\n"),
        (blocks("f = len\n", "f([])\n"), {"tests": ["assert f([]) == 0"]}, "f = len\n"),
        (blocks("def f(x):\n    pass\n", PROGRAM), {"tests": ["assert f(1) == 2"]}, PROGRAM),  # a draft before it
        (blocks("f = g = abs\n", PROGRAM), {"tests": ["assert f(g(1)) == 2"]}, "f = g = abs\n"),
        (blocks(PROGRAM, "def f(x\n"), {"tests": ["assert f(1) == 2"]}, PROGRAM),  # cut off
        (blocks("x = 1\n", "y = 2\n"), {"tests": ["assert f(1) == 2"]}, "y = 2\n"),  # none defines it
        (blocks(PROGRAM, "print(2)\n"), CASES, "print(2)\n"),
    ],
)
def test_a_block_that_defines_what_is_tested_comes_before_a_block_that_only_uses_it(response, ground_truth, program):
    assert extract_program(response, find_used_names(ground_truth)) == program


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
