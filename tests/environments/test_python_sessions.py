"""A session of the Python tool in the real sandbox: its state, what is shown of it, and its limits."""

import math

import pytest

from tasks.environments.python_tool import RUN_PROGRAM, python_tool
from tasks.verifiers.code import SandboxError, open_sandbox
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.programs import execute_program
from tasks.verifiers.code.running import Execution, keep_ends
from tests.environments.scripted import play

pytestmark = pytest.mark.long

CONFIG = CodeConfig(test_seconds=10, total_seconds=10)


@pytest.fixture(scope="module")
def sandbox():
    try:
        opened = open_sandbox(CONFIG)
    except SandboxError as reason:
        pytest.skip(str(reason))
    with opened:
        yield opened


@pytest.fixture
def in_sandbox(sandbox):
    """Plays the tool in the real sandbox: texts of the policy to the texts that it read."""

    def contents(*texts, config=CONFIG, **options):
        async def run(program, output_chars):
            done = execute_program(program, config, math.inf, sandbox)
            return Execution(keep_ends(done.output, output_chars), done.ending, done.timed_out)

        token = RUN_PROGRAM.set(run)
        try:
            return play(python_tool, [*(f"```python\n{text}\n```" for text in texts), "done"], **options).contents
        finally:
            RUN_PROGRAM.reset(token)

    return contents


def test_a_session_has_the_state_of_the_code_before_and_its_output_once(in_sandbox):
    assert in_sandbox("x = 20\nprint('a')", "def f(): return x + 1\nprint('b')", "f()", "_ * 2") == [
        "a",
        "b",
        "21",
        "42",
    ]


def test_a_last_expression_is_shown_unless_it_is_none(in_sandbox):
    assert in_sandbox("'a'", "None", "[1]", "x = 1", "print(2)") == ["'a'", "(no output)", "[1]", "(no output)", "2"]


def test_an_exception_is_shown_with_the_lines_of_the_code_and_ends_nothing(in_sandbox):
    first, second, third = in_sandbox("x = 1\n1 / 0\nx = 2", "print(x)\ndef f():\n    g()\nf()", "x =")
    assert first == (
        'Traceback (most recent call last):\n  File "<code 1>", line 2, in <module>\n    1 / 0\n    ~~^~~\n'
        "ZeroDivisionError: division by zero"
    )
    assert second.startswith("1\nTraceback (most recent call last):\n")
    assert 'File "<code 2>", line 3, in f\n    g()' in second
    assert second.endswith("NameError: name 'g' is not defined")
    assert 'File "<code 3>", line 1' in third
    assert third.endswith("SyntaxError: invalid syntax")


def test_code_that_exits_ends_itself_alone(in_sandbox):
    assert in_sandbox("x = 1\nimport sys\nsys.exit(3)", "x") == [
        'Traceback (most recent call last):\n  File "<code 1>", line 3, in <module>\n    sys.exit(3)\nSystemExit: 3',
        "1",
    ]


def test_code_that_does_not_reach_its_end_is_no_part_of_the_state(in_sandbox):
    lost = "[The code did not finish: exit status 9. Its definitions are lost.]"
    exits = "x = 2\nprint('so far')\nimport os\nos._exit(9)"
    assert in_sandbox("x = 1", exits, "x") == ["(no output)", f"so far\n{lost}", "1"]


def test_code_that_hangs_is_ended_with_what_it_printed(in_sandbox):
    config = CodeConfig(test_seconds=0.6, total_seconds=1)
    hangs, after = in_sandbox("print('so far')\nwhile True: pass", "2", config=config)
    assert hangs == "so far\n[The code exceeded its time limit. Its definitions are lost.]"
    assert after == "2"


def test_memory_is_limited(in_sandbox):
    (text,) = in_sandbox("x = bytearray(1 << 40)")
    assert text.endswith("MemoryError")


def test_long_output_is_cut_in_its_middle(in_sandbox):
    (text,) = in_sandbox("print('a' * 50 + 'b' * 50)", max_output_chars=20)
    assert text == f"{'a' * 10}\n[81 characters left out]\n{'b' * 9}"


def test_output_beyond_the_services_limit_ends_the_code(in_sandbox):
    config = CodeConfig(test_seconds=10, total_seconds=10, output_bytes=1000)
    flood, after = in_sandbox("while True: print('x' * 99)", "2", config=config, max_output_chars=100)
    assert flood.endswith("[The code did not finish: more than 1000 bytes of output. Its definitions are lost.]")
    assert after == "2"


def test_random_numbers_are_the_same_when_code_is_run_again(in_sandbox):
    drawn, again = in_sandbox("import random\nx = random.random()\nprint(x)", "print(x)")
    assert drawn == again
    drawn, again = in_sandbox("import numpy\nx = numpy.random.rand()\nprint(x)", "print(x)")
    assert drawn == again


def test_errors_and_what_bypasses_python_are_output_too(in_sandbox):
    code = "import os, sys\nprint('a')\nprint('b', file=sys.stderr)\nsys.stdout.flush()\nos.write(1, b'c')"
    assert in_sandbox(code, "1") == ["a\nb\nc1", "1"]  # `os.write` returns 1


HOSTILE = {
    "input": ("input()", "EOFError: EOF when reading a line"),
    "surrogates": ("print('\\ud800')", "\\ud800"),
    "a network": ("import socket\nsocket.create_connection(('127.0.0.1', 1))", "Error"),
    "a file": ("open('/etc/passwd').read()", "Error"),
    "a process": ("import subprocess\nsubprocess.run(['ls'])", "Error"),
    "an exception that cannot be shown": (
        "class E(Exception):\n    def __str__(self): raise E\nraise E",
        "E: <exception str() failed>",
    ),
    "a deep program": ("(" * 5000 + "1" + ")" * 5000, "too many nested parentheses"),
    "no text": ("x = '\x00'", "null bytes"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_code_is_answered(in_sandbox, what):
    code, ending = HOSTILE[what]
    (text,) = in_sandbox(code)
    assert ending in text.splitlines()[-1]


def test_the_session_leaves_no_name_behind(in_sandbox):
    (names,) = in_sandbox("sorted(name for name in globals() if not name.startswith('__'))")
    assert names == "[]"


def test_dataclasses_and_the_main_module_are_those_of_the_session(in_sandbox):
    code = "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
    assert in_sandbox(code, "import __main__\n__main__.P(1)") == ["(no output)", "P(x=1)"]
