"""Programs between standard input and output behave as under Python itself: how they end, and what arrives."""

import subprocess
import sys

import pytest

from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.sandbox import Sandbox
from tests.verifiers.code.judging_code import detail_of_output, detail_of_tests

FAST_IO = """
import os, sys
from io import BytesIO, IOBase

class FastIO(IOBase):
    newlines = 0

    def __init__(self, file):
        self._fd = file.fileno()
        self.buffer = BytesIO()
        self.writable = "x" in file.mode or "r" not in file.mode
        self.write = self.buffer.write if self.writable else None

    def read(self):
        while b := os.read(self._fd, max(os.fstat(self._fd).st_size, 8192)):
            ptr = self.buffer.tell()
            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)
        self.newlines = 0
        return self.buffer.read()

    def readline(self):
        while self.newlines == 0:
            b = os.read(self._fd, max(os.fstat(self._fd).st_size, 8192))
            self.newlines = b.count(b"\\n") + (not b)
            ptr = self.buffer.tell()
            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)
        self.newlines -= 1
        return self.buffer.readline()

    def flush(self):
        if self.writable:
            os.write(self._fd, self.buffer.getvalue())
            self.buffer.truncate(0), self.buffer.seek(0)

class IOWrapper(IOBase):
    def __init__(self, file):
        self.buffer = FastIO(file)
        self.flush = self.buffer.flush
        self.writable = self.buffer.writable
        self.write = lambda s: self.buffer.write(s.encode("ascii"))
        self.read = lambda: self.buffer.read().decode("ascii")
        self.readline = lambda: self.buffer.readline().decode("ascii")

sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)
input = lambda: sys.stdin.readline().rstrip("\\r\\n")
for _ in range(int(input())):
    print(sum(map(int, input().split())))
"""

ENDS = {
    "exit": "print(1); exit()",
    "quit": "print(1)\nquit()\nprint(2)",
    "exit-0": "print(1); exit(0)",
    "exit-1": "print(1); exit(1)",
    "exit-text": "print(1); exit('no')",
    "sys-exit": "import sys\nprint(1); sys.exit()",
    "sys-exit-256": "import sys\nprint(1); sys.exit(256)",
    "sys-exit-negative": "import sys\nprint(1); sys.exit(-1)",
    "system-exit": "print(1)\nraise SystemExit",
    "system-exit-true": "print(1)\nraise SystemExit(True)",
    "hard-exit": "import os\nprint(1); os._exit(0)",
    "hard-exit-flushed": "import os\nprint(1, flush=True); os._exit(0)",
    "hard-exit-3": "import os\nprint(1, flush=True); os._exit(3)",
    "error": "print(1); 1 / 0",
    "syntax": "print(1); print(",
    "exit-in-thread": "import threading\nthreading.Thread(target=lambda: exit(1)).start()\nprint(1)",
    "error-in-thread": "import threading\nthreading.Thread(target=lambda: 1 / 0).start()\nprint(1)",
    "daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\nprint(1)",
    "atexit": "import atexit\natexit.register(print, 2)\nprint(1)",
    "atexit-order": "import atexit\nfor n in (3, 2): atexit.register(print, n)\nprint(1)",
    "atexit-error": "import atexit\natexit.register(print, 2)\natexit.register(lambda: 1 / 0)\nprint(1)",
    "atexit-after-error": "import atexit\natexit.register(print, 2)\n1 / 0",
    "atexit-after-exit": "import atexit\natexit.register(print, 2)\nexit(5)",
    "atexit-hard": "import atexit, os\natexit.register(os._exit, 7)\nprint(1)",
    "atexit-after-threads": (
        "import atexit, threading, time\natexit.register(print, 3)\n"
        "threading.Thread(target=lambda: (time.sleep(0.02), print(2))).start()\nprint(1)"
    ),
    "hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0",
    "stdout-closed": "import sys\nprint(1)\nsys.stdout.close()",
    "stdout-none": "import sys\nprint(1)\nsys.stdout = None\nprint(2)",
    "stdout-gone": "import sys\nprint(1)\ndel sys.stdout",
    "stdout-broken": "import os, sys\nprint(1)\nos.close(1)",
    "stdout-replaced": "import io, sys\nprint(1)\nsys.stdout = io.StringIO()\nprint(2)",
    "stdout-restored": (
        "import io, sys\nsys.stdout = s = io.StringIO()\nprint(2)\nsys.stdout = sys.__stdout__\nprint(s.getvalue())"
    ),
    "stdout-bytes": (
        "import atexit, io, os, sys\nsys.stdout = s = io.BytesIO()\n"
        "atexit.register(lambda: os.write(1, s.getvalue()))\nsys.stdout.write(b'1 2')"
    ),
    "stdout-text": (
        "import atexit, io, sys\ns = sys.stdout = io.StringIO()\n"
        "atexit.register(lambda: sys.__stdout__.write(s.getvalue()))\nprint(1, 2)"
    ),
    "print-is-write": "import sys\nprint = sys.stdout.write\nprint('1\\n')\nprint('2')",
    "buffer-after-text": "import sys\nprint(1)\nsys.stdout.buffer.write(b'2\\n')\nprint(3)",
    "own-file": "out = open(1, 'w')\nout.write('1 2')",
    "own-wrapper": "import io, os, sys\nsys.stdout = io.TextIOWrapper(os.fdopen(1, 'wb'))\nprint(1)",
    "finaliser": "import os\nclass A:\n    def __del__(self): os.write(1, b'1')\na = A()",
    "reads-all": "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
    "reads-descriptor": "print(open(0).read().split())",
    "reads-lines": "import sys\ninput = sys.stdin.readline\nprint(int(input()), input().split())",
    "reads-too-much": "while True:\n    print(input())",
    "reads-until-end": "import sys\nfor line in iter(sys.stdin.readline, ''): print(line.strip())",
    "prompts": "print(input('n? '))",
    "fast-io": FAST_IO,
    "main": "import __main__, sys\nprint(__name__, sys.argv[0] == 'main.py', __main__.__name__, __file__ != '')",
    "encoding": "import sys\nprint(sys.stdout.encoding, sys.stdout.errors, sys.stdin.encoding, '\\u00e9')",
}
GIVEN = "3\n1 2 3\n4 5\n6\n"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("namespaces", None, 16) as opened:
        yield opened


@pytest.fixture
def plainly(tmp_path):
    """Output and exit status of a program under Python alone."""

    def plainly(program):
        (tmp_path / "main.py").write_text(program)
        command = [sys.executable, "-E", "-X", "utf8", "main.py"]
        done = subprocess.run(command, cwd=tmp_path, input=GIVEN.encode(), capture_output=True, timeout=20, check=False)
        return done.stdout.decode(), done.returncode

    return plainly


@pytest.mark.parametrize("name", ENDS)
def test_a_program_ends_as_under_python_alone(sandbox, plainly, name):
    output, status = plainly(ENDS[name])
    detail = detail_of_output(sandbox, ENDS[name], output, GIVEN)
    assert detail == (f"exit status {status}" if status else "")


def test_output_of_a_program_that_fails_is_flushed_though_it_earns_nothing(sandbox):
    program = "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\nprint(1)\nsys.stdout.flush()\n1 / 0"
    assert detail_of_output(sandbox, program, "1") == ""


def test_an_exit_while_functions_are_loaded_is_no_answer(sandbox):
    for how in ("exit()", "quit(0)", "import sys\nsys.exit(0)", "raise SystemExit(0)"):
        assert detail_of_tests(sandbox, f"def f(): return 1\n{how}", "assert f() == 1")


def test_a_function_that_exits_raises_system_exit(sandbox):
    assert detail_of_tests(sandbox, "def f(): exit(3)", "assert f() is None") != ""


def test_an_expected_output_longer_than_output_bytes_can_be_met(sandbox):
    config = CodeConfig(output_bytes=10_000)
    long = "7 " * 100_000
    assert not detail_of_output(sandbox, "print('7 ' * 100_000)", long, config=config)
    assert detail_of_output(sandbox, "print('7 ' * 99_999)", long, config=config).startswith("wrong output")
    assert detail_of_output(sandbox, "print('7 ' * 900_000)", long, config=config) == "more than 400000 bytes of output"
