"""Runs the tests of one response in a sandbox: assertions on its functions, or cases of standard input and output.

`run_program` runs a program alone and returns its output.

Assertions, which a response must not read:                     Cases:

    this process ──test──► checker ──call──► response               source, input ──► program ──► output
                 ◄─verdict─        ◄─value──                        compared with the expected output in this process
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from tasks.verifiers.code.comparison import is_same_output
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.inside.confine import Limits
from tasks.verifiers.code.prepared import Prepared
from tasks.verifiers.code.sandbox import Ended, Sandbox
from tasks.verifiers.code.timing import Clock, OutOfTime
from tasks.verifiers.scores import CannotJudge

EXIT_GRACE_SECONDS = 1.0
"""Seconds that a program may take to end after it has closed its output."""
MAX_OUTPUT_CHARS = 100_000
"""Maximum number of characters of a program's output that a code server returns."""


@dataclass(frozen=True)
class Verdict:
    """The result of one test: whether it passed, a message about the reason, and whether it is due to a time limit."""

    passed: bool
    detail: str = ""
    timed_out: bool = False


@dataclass(frozen=True)
class Case:
    """The standard input of a program, and its expected standard output."""

    input: str
    output: str


@dataclass(frozen=True)
class Execution:
    """The output of a program, and how it ended.

    Attributes:
        output: its standard output, up to the limit.
        ending: the reason why it did not end normally with exit status 0, or empty if it did.
        timed_out: True if a time limit ended it.
    """

    output: str
    ending: str = ""
    timed_out: bool = False


def run_program(sandbox: Sandbox, program: str, config: CodeConfig, clock: Clock) -> Execution:
    """Run a program without input, under the limits of one test.

    Raises:
        TakesLong: it has used up its budget.
        SandboxError: the sandbox failed.
    """
    with _open_sealed_file(program) as source:
        return _execute(sandbox, source, "", _make_limits(config), clock, config.output_bytes)


def keep_ends(output: str, chars: int) -> str:
    """Return an output, or its head and tail and a note if it has more than `chars` characters, half of them each."""
    if len(output) <= chars:
        return output
    head, tail = output[: (chars + 1) // 2], output[len(output) - chars // 2 :]
    return f"{head}\n[{len(output) - chars} characters left out]\n{tail}"


def run_assertions(
    sandbox: Sandbox, program: str, prepared: Prepared, config: CodeConfig, clock: Clock
) -> list[Verdict]:
    """Run tests that call the response's functions, and return one verdict per test, in order.

    The response's process only sees what is needed to compute the arguments of its functions. All tests call into the
    same process of the response, as in a test file. After a test that does not end, or that ends the process, the next
    one gets a new process.

    The part of a test that uses the response runs in the response's process, and the rest in another one (`split`).

    Raises:
        CannotJudge: a test needs a module that the sandbox's Python lacks.
        TakesLong: the response has used up its budget.
        SandboxError: the sandbox failed.
    """
    limits = _make_limits(config)
    tests = prepared.tests
    verdicts: list[Verdict] = []
    while len(verdicts) < len(tests):
        clock.begin_test()
        with _start_processes(sandbox, program, prepared, limits, clock) as talk:
            for number in range(len(verdicts), len(tests)):
                if clock.over:  # the remaining tests do not run, but each needs a verdict
                    late = Verdict(False, _describe_total_limit(config), timed_out=True)
                    return verdicts + [late] * (len(tests) - len(verdicts))
                # The setup runs once for each process. If it fails, its verdict is the test's.
                verdict, alive = talk.run(prepared.setup) if not talk.ready else (Verdict(True), True)
                if verdict.passed:
                    talk.ready = True
                    verdict, alive = talk.run(tests[number], prepared.theirs[number] if prepared.theirs else ())
                verdicts.append(verdict)
                if not alive:
                    break
    return verdicts


def run_cases(sandbox: Sandbox, program: str, cases: Sequence[Case], config: CodeConfig, clock: Clock) -> list[Verdict]:
    """Run the program once per case, each in its own process, and return one verdict per case, in order.

    Raises:
        TakesLong: the response has used up its budget.
        SandboxError: the sandbox failed.
    """
    limits = _make_limits(config)
    verdicts = []
    with _open_sealed_file(program) as source:
        for case in cases:
            if clock.over:
                verdicts.append(Verdict(False, _describe_total_limit(config), timed_out=True))
            else:
                os.lseek(source, 0, os.SEEK_SET)  # the program of the previous case shares this position
                verdicts.append(_run_case(sandbox, source, case, limits, clock, _limit_output(case, config)))
    return verdicts


class _TestRun:
    """The client side of a test run: sends requests to the process of the tests."""

    def __init__(self, orders: socket.socket, clock: Clock) -> None:
        self._orders = orders
        self._clock = clock
        self.ready = False

    def run(self, source: str, theirs: Sequence[str] = ()) -> tuple[Verdict, bool]:
        """Run test code; return the verdict, and True if the processes can be used further."""
        self._clock.begin_test()
        try:
            self._orders.sendall(json.dumps({"run": source, "theirs": list(theirs)}).encode() + b"\n")
            line = self._read()
        except OutOfTime:
            return Verdict(False, "time limit of the test", timed_out=True), False
        except OSError:
            line = b""
        if not line:
            return Verdict(False, "the test's process ended"), False
        answer = json.loads(line)
        if answer["cannot"]:
            raise CannotJudge(f"a test cannot be run here: {answer['detail']}")
        return Verdict(answer["passed"], answer["detail"]), not answer["gone"]

    def _read(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            self._clock.wait_for(self._orders.fileno())
            part = self._orders.recv(1 << 16)
            if not part:
                return b""
            line += part
        return line


@contextmanager
def _start_processes(
    sandbox: Sandbox, program: str, prepared: Prepared, limits: Limits, clock: Clock
) -> Iterator[_TestRun]:
    """Fork a process for the response and one for the tests, and end both at the end of the block."""
    orders, checker = socket.socketpair()
    asking, answering = socket.socketpair()
    with ExitStack() as stack:
        for end in (orders, checker, asking, answering):
            stack.callback(end.close)
        parts = {"response": [answering.fileno()], "checker": [checker.fileno(), asking.fileno()]}
        response, tests = sandbox.fork_together(limits, parts)
        stack.callback(sandbox.end, response)
        stack.callback(sandbox.end, tests)
        answering.close()  # only the forks have these ends now, so the end of a fork closes its connections
        checker.close()
        # Sent after both forks: a response that uses up all resources must not keep its tests from starting.
        message = {"source": program, "given": prepared.given, "classes": prepared.classes}
        with suppress(OSError):  # if the response ends while it is being loaded, the first test reports it
            asking.sendall(json.dumps(message).encode() + b"\n")
        asking.close()
        orders.sendall(json.dumps({"classes": prepared.classes, "crossing": prepared.crossing}).encode() + b"\n")
        with clock.watch(response, tests):
            yield _TestRun(orders, clock)


def _limit_output(case: Case, config: CodeConfig) -> int:
    """Return the bytes of output that a program may write, as the expected output may exceed the usual limit."""
    return max(config.output_bytes, 2 * len(case.output.encode("utf-8", "surrogatepass")))


def _run_case(sandbox: Sandbox, source: int, case: Case, limits: Limits, clock: Clock, output_bytes: int) -> Verdict:
    run = _execute(sandbox, source, case.input, limits, clock, output_bytes)
    if run.ending:
        return Verdict(False, run.ending, run.timed_out)
    same = is_same_output(run.output, case.output)
    return Verdict(True) if same else Verdict(False, f"wrong output {run.output[:80]!r}")


def _execute(
    sandbox: Sandbox, source: int, standard_input: str, limits: Limits, clock: Clock, output_bytes: int
) -> Execution:
    """Run the program in the file of the descriptor `source`, in its own process."""
    output, timed_out = bytearray(), False
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0):
        # The writing end is closed here after the fork, so that reading ends when the program closes its output.
        with _open_sealed_file(standard_input) as given, open(writing, "wb", buffering=0):
            process = sandbox.fork("program", limits, [source, given, writing])
        try:
            with clock.watch(process):
                clock.begin_test()
                _read_into(output, reading, clock, output_bytes)
                if len(output) <= output_bytes:
                    with suppress(OutOfTime):  # it is then killed, and the verdict says that it did not end
                        clock.wait_for(process.watched, EXIT_GRACE_SECONDS)
        except OutOfTime:
            timed_out = True
        finally:
            ended = sandbox.end(process)
    ending = "time limit of the test" if timed_out else ""
    if len(output) > output_bytes:
        ending = f"more than {output_bytes} bytes of output"
    elif not timed_out and ended.status != 0:
        ending = _describe_end(ended)
    return Execution(output[:output_bytes].decode(errors="replace"), ending, timed_out)


def _read_into(output: bytearray, descriptor: int, clock: Clock, limit: int) -> None:
    """Read until the end, or until `output` has more than `limit` bytes. It keeps what was read before an exception."""
    while len(output) <= limit:
        clock.wait_for(descriptor)
        part = os.read(descriptor, 1 << 16)
        if not part:
            return
        output += part


@contextmanager
def _open_sealed_file(text: str) -> Iterator[int]:
    """Open a sealed file in memory that contains `text`, and yield its descriptor."""
    descriptor = os.memfd_create("text", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(text.encode("utf-8", "surrogatepass"))  # plain UTF-8 rejects lone surrogates of a response
        # Several programs get this descriptor one after the other; none of them may change the file.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _make_limits(config: CodeConfig) -> Limits:
    return Limits(
        cpu_seconds=math.ceil(config.total_seconds),  # `Clock` ends a response earlier, unless this process hangs
        memory_bytes=config.memory_mib << 20,
        file_bytes=config.disk_mib << 20,
    )


def _describe_end(ended: Ended) -> str:
    if ended.killed:
        return "did not end"
    return f"ended by signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"


def _describe_total_limit(config: CodeConfig) -> str:
    return f"total time limit of {config.total_seconds:g} s"
