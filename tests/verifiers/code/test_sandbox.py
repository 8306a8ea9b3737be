"""What the sandbox shows, bounds and passes on, whoever runs it, under each isolation."""

import os
import platform
import select
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tasks.verifiers.code.inside.confine import Limits
from tasks.verifiers.code.sandbox import Sandbox, SandboxError, _find_bwrap
from tests.verifiers.code.judging_code import detail_of_output, detail_of_tests

GUARD_S = 30.0
LIMITS = Limits(cpu_seconds=10, memory_bytes=512 << 20)
ARRAYS = "import numpy as np\ndef f(x): return np.array(x)\ndef g(x): return np.mean(x)\ndef h(x): return np.sum(x)"


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def sandbox(request):
    try:
        opened = Sandbox(request.param, None, 16, nice=3)
    except SandboxError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@contextmanager
def started(sandbox, program):
    """A program that runs, and where it writes to; somebody else must answer for its threads."""
    reading, writing = os.pipe()
    source, nothing = (os.memfd_create(name) for name in ("source", "nothing"))
    os.write(source, program.encode())
    os.lseek(source, 0, os.SEEK_SET)
    process = sandbox.fork("program", LIMITS, [source, nothing, writing])
    for descriptor in (source, nothing, writing):
        os.close(descriptor)
    try:
        yield process, reading
    finally:
        sandbox.end(process)
        os.close(reading)


def answered_until_it_ends(process):
    """The most threads that were ever seen while all that the process asked for was answered."""
    most, deadline = 0, time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        ready, _, _ = select.select([process.watched, process.requests], [], [], 1)
        if process.watched in ready:
            return most
        if ready:
            process.answer_request()
        with suppress(OSError):  # it has just ended
            most = max(most, len(os.listdir(f"/proc/{process.pid}/task")))
    raise AssertionError("never ended")


BARE_THREADS = (
    "import _thread, time\n_thread.stack_size(65536)\nn = 0\ntry:\n    while n < 5000:\n"
    "        _thread.start_new_thread({}, {})\n        n += 1\nexcept RuntimeError: print(n)\n"
)


def test_threads_are_bounded_and_the_program_hears_of_it(sandbox):
    with started(sandbox, BARE_THREADS.format("time.sleep", "(9,)")) as (process, reading):
        assert answered_until_it_ends(process) <= LIMITS.threads
        assert os.read(reading, 99) == b"63\n"


def test_threads_that_start_threads_at_one_time_are_bounded_too(sandbox):
    bomb = (
        "import _thread, time\n_thread.stack_size(65536)\ndef bomb():\n    for _ in range(40):\n"
        "        try: _thread.start_new_thread(bomb, ())\n        except RuntimeError: time.sleep(0.001)\n"
        "    time.sleep(0.1)\nbomb()\ntime.sleep(0.3)"
    )
    with started(sandbox, bomb) as (process, _):
        assert 8 < answered_until_it_ends(process) <= 2 * LIMITS.threads


def test_nobody_but_the_owner_answers(sandbox):
    with started(sandbox, BARE_THREADS.format("time.sleep", "(9,)")) as (process, _):
        ready, _, _ = select.select([process.watched], [], [], 0.3)
        assert not ready
        assert len(os.listdir(f"/proc/{process.pid}/task")) == 1


@pytest.mark.parametrize("program", ["", "import os; os._exit(0)", "1 / 0"])
def test_a_program_that_asks_for_nothing_is_ended_with_its_requests(sandbox, program):
    runs, before = 5, len(os.listdir("/proc/self/fd"))
    for _ in range(runs):
        with started(sandbox, program) as (process, _):
            assert answered_until_it_ends(process) <= 1
    # Other threads of the test's process, Ray's say, open and close files meanwhile; a leak would be one for every run.
    assert len(os.listdir("/proc/self/fd")) - before < runs


def test_a_kernel_that_lets_no_one_bound_threads_is_named(monkeypatch):
    from tasks.verifiers.code import sandbox as sandboxes

    source = sandboxes._read_source
    old = '_SECCOMP = {"x86_64": 317, "aarch64": 277}'
    assert old in source("tasks.verifiers.code.inside.confine")
    absent = '_SECCOMP = {"x86_64": 9999, "aarch64": 9999}'
    monkeypatch.setattr(sandboxes, "_read_source", lambda name: source(name).replace(old, absent))
    with pytest.raises(SandboxError, match=r"threads.*Linux 5\.5"):
        Sandbox("landlock", None, 16)


def test_descriptors_cannot_be_passed(sandbox):
    program = (
        "import socket\na, b = socket.socketpair()\na.send(b'x')\nprint(b.recv(1))\n"
        "try: socket.send_fds(a, [b'x'], [0])\nexcept OSError as e: print(e.errno)\n"
        "try: b.recvmsg(1)\nexcept OSError as e: print(e.errno)"
    )
    assert detail_of_output(sandbox, program, "b'x' 1 1") == ""


def test_the_kernel_takes_a_program_first_when_the_machine_has_no_memory(sandbox):
    lower = (
        "import os\nfor pid in ('self', os.getpid(), os.getppid()):\n"
        "    try: print(open(f'/proc/{pid}/oom_score_adj', 'w'))\n    except OSError: print('no', flush=True)\n"
        "import time; time.sleep(9)"
    )
    with started(sandbox, lower) as (process, reading):
        printed = b""
        while printed.count(b"\n") < 3:
            printed += os.read(reading, 99)
        assert printed == b"no\n" * 3
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n"


def test_what_runs_in_it_stands_back_as_asked(sandbox):
    with started(sandbox, "import time; time.sleep(9)") as (process, _):
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 3


def test_programs_import_numpy_and_all_that_it_loads_later(sandbox):
    program = (
        "import numpy as np, numpy.fft, numpy.random, numpy.polynomial\n"
        "print(np.linalg.solve(np.eye(2), [1, 2]), np.ones((300, 300)).dot(np.ones((300, 300))).sum())\n"
        "print(np.random.default_rng(0).integers(1), np.fft.fft([1, 0]).real, np.polynomial.Polynomial([1, 2])(1))"
    )
    assert detail_of_output(sandbox, program, "[1. 2.] 27000000.0 0 [1. 1.] 3.0") == ""


@pytest.mark.parametrize(
    "test",
    [
        "assert f([1, 2]) == [1, 2]",
        "assert f([[1], [3]]) == [[1], [3]]",
        "assert np.array_equal(f([1, 2]), [1, 2])",
        "assert np.array_equal(f([1, 2]), np.array([1, 2]))",
        "assert np.allclose(f([0.1, 0.2]), [0.1, 0.2])",
        "assert (np.array(f([1, 2])) == np.array([1, 2])).all()",
        "np.testing.assert_allclose(f([1, 2]), [1, 2])",
        "assert g([1, 2]) == 1.5 and abs(g([1, 2]) - 1.5) < 1e-9 and isinstance(g([1, 2]), float)",
        "assert h([1, 2]) == 3 and isinstance(h([1, 2]), int)",
        "assert h([True]) == True",
        "assert f(3) == 3",
        "assert h(np.array([1, 2])) == 3",
        "assert g(np.array([[1.0, 2.0]])) == 1.5 and f(np.float64(1.5)) == 1.5 and f(np.int64(2)) == 2",
    ],
)
def test_arrays_and_numbers_of_numpy_are_compared(sandbox, test):
    assert detail_of_tests(sandbox, ARRAYS, test) == ""
    assert detail_of_tests(sandbox, ARRAYS.replace("(x): return ", "(x): return 1 + "), test) != ""


def test_nothing_of_the_installation_is_seen_but_the_library_and_the_packages(sandbox):
    program = (
        "import importlib, os, sys\n"
        "for name in ('pydantic', 'pytest', 'pip', 'setuptools', 'aiohttp', 'yaml', 'tasks.verifiers.registry'):\n"
        "    try: print(importlib.import_module(name))\n    except ModuleNotFoundError: pass\n"
        "prefix = os.path.dirname(os.path.dirname(os.path.dirname(os.__file__)))\n"
        "for name in ('bin', 'include', 'share', 'lib/pkgconfig', 'lib/python3.11/site-packages/pip'):\n"
        "    try: print(os.listdir(os.path.join(prefix, name)))\n    except OSError: pass\n"
        "for path in sys.path:\n    for name in ('pip/__init__.py', 'pydantic/__init__.py', 'six.py'):\n"
        "        try: print(open(os.path.join(path, name)))\n        except OSError: pass\n"
    )
    assert detail_of_output(sandbox, program, "") == ""


def test_all_of_the_standard_library_is_there(sandbox):
    program = (
        "import importlib, sys\nfor name in sorted(sys.stdlib_module_names - {'antigravity', 'this', 'idlelib'}):\n"
        "    try: importlib.import_module(name)\n    except ImportError as error: print(name, end=' ')\n"
    )
    absent = []
    for name in (
        *("_dbm", "_gdbm", "_msi", "_overlapped", "_scproxy", "_winapi", "_wmi", "msilib", "msvcrt", "nt", "winreg"),
        *("winsound", "_tkinter", "tkinter", "turtle", "turtledemo", "_curses", "_curses_panel", "curses"),
    ):
        try:
            __import__(name)
        except ImportError:
            absent.append(name)
    known = sorted(set(absent) & sys.stdlib_module_names)
    assert detail_of_output(sandbox, program, " ".join(known)) == ""


def test_packages_are_read_only(sandbox):
    program = (
        "import numpy, os\nfor attempt in (lambda: open(numpy.__file__, 'a'), lambda: os.unlink(numpy.__file__),\n"
        "        lambda: open(os.path.dirname(os.path.dirname(numpy.__file__)) + '/six.py', 'w')):\n"
        "    try: print(attempt())\n    except OSError: pass"
    )
    assert detail_of_output(sandbox, program, "") == ""


@pytest.mark.long
def test_other_packages_come_with_what_they_require_and_none_can_be_left_out_of_the_library():
    with Sandbox("namespaces", None, 16, packages=()) as bare:
        assert detail_of_output(bare, "import numpy", "") == "exit status 1"
        assert detail_of_output(bare, "import json, decimal", "") == ""
    with Sandbox("landlock", None, 16, packages=("sympy",)) as symbolic:
        assert detail_of_output(symbolic, "import sympy, mpmath\nprint(sympy.factorint(12))", "{2: 2, 3: 1}") == ""
        assert detail_of_output(symbolic, "import numpy", "") == "exit status 1"


def test_a_limit_on_memory_that_the_packages_fill_is_an_error_not_a_0(sandbox):
    with pytest.raises(SandboxError, match=r"memory_mib = 64 .* \d+ MiB"):
        sandbox.fork("checker", Limits(cpu_seconds=1, memory_bytes=64 << 20), [])


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(SandboxError, match=r"code\.packages: no-such-package"):
        Sandbox("namespaces", None, 16, packages=("numpy", "no-such-package"))


CONTAINED = '''
import ctypes, os, struct, sys

def deny(numbers):
    """A profile as of containers: these calls are refused, and with `unshare` the flag of clone that does the same."""
    def instruction(code, true, false, value):
        return struct.pack("HBBI", code, true, false, value)
    def refused(number, error):
        return instruction(0x15, 0, 1, number) + instruction(6, 0, 0, 0x50000 | error)
    code = instruction(0x20, 0, 0, 0) + b"".join(refused(number, 1) for number in numbers) + refused(435, 38)
    if 272 in numbers:
        code += instruction(0x15, 0, 3, 56) + instruction(0x20, 0, 0, 16) + instruction(0x45, 0, 1, 0x10000000)
        code += instruction(6, 0, 0, 0x50001)
    code += instruction(6, 0, 0, 0x7FFF0000)
    buffer = ctypes.create_string_buffer(code, len(code))
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    assert libc.prctl(38, 1, 0, 0, 0) == 0 == libc.prctl(22, 2, header, 0, 0)

if numbers := [int(number) for number in sys.argv[2:]]:
    deny(numbers)

import psutil
from tasks.verifiers.code.sandbox import Sandbox, SandboxError, _find_bwrap
from tests.verifiers.code.judging_code import detail_of_output

try:
    with Sandbox(sys.argv[1], None, 16, nice=5) as sandbox:
        host = psutil.Process().children(recursive=True)[-1]  # the only child, or bubblewrap's
        print(open(f"/proc/{host.pid}/oom_score_adj").read().strip())
        print(detail_of_output(sandbox, "import numpy; print(numpy.ones(2).sum())", "2.0") or "works")
except SandboxError as error:
    print(error)
'''
UNSHARE, SET_SCHEDULER, SET_PRIORITY, SECCOMP = 272, 144, 141, 317
CONTAINERS = {
    "an unprivileged user": (True, False, []),
    "a read-only root": (False, True, []),
    "an unprivileged user in a read-only root": (True, True, []),
    "a profile without scheduling": (True, False, [SET_SCHEDULER, SET_PRIORITY]),
}


def in_container(isolation, unprivileged, read_only, denied):
    """What is said there: the out-of-memory score and how a program did, or why there is no sandbox."""
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    if os.getuid() != 0 or platform.machine() != "x86_64" or not python or not shutil.which("setpriv"):
        pytest.skip("needs root, x86_64, a Python for all users, and setpriv")
    path = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-P", "-c", CONTAINED, isolation, *map(str, denied)]
    version = f"import sys, tests.verifiers; open({_find_bwrap()!r}).close(); print(*sys.version_info[:2], sep='.')"
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if unprivileged else []
    probe = subprocess.run([*user, python, "-P", "-c", version], env=environment, capture_output=True, text=True)
    if probe.stdout.strip() != "{}.{}".format(*sys.version_info):
        pytest.skip("no Python of this version that all users may run, or a checkout that they may not read")
    if read_only:
        command = [_find_bwrap(), "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", *command]
    done = subprocess.run([*user, *command], env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines() or done.stderr.splitlines()[-1:]


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_it_works_in_containers(isolation, container):
    assert in_container(isolation, *CONTAINERS[container]) == ["1000", "works"]


@pytest.mark.long
def test_without_user_namespaces_landlock_works_and_the_other_says_why():
    assert in_container("landlock", True, False, [UNSHARE]) == ["1000", "works"]
    (printed,) = in_container("namespaces", True, False, [UNSHARE])
    assert printed.startswith("no sandbox with namespaces here: ")
    assert "does not allow non-privileged user namespaces" in printed


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_where_threads_cannot_be_bounded_it_says_so(isolation):
    (printed,) = in_container(isolation, True, False, [SECCOMP])
    assert "threads cannot be bounded by seccomp's user notification (Linux 5.5): Operation not permitted" in printed
