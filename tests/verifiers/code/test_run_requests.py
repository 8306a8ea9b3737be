"""Programs that run without a judgement: what comes back, what a server refuses, and how a pool hands them on."""

import asyncio
import json

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tasks.verifiers import VerifierPool, VerifiersConfig
from tasks.verifiers.code import SandboxError, open_sandbox
from tasks.verifiers.code.client import MAX_RESPONSE_BYTES, CodeClient
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.extraction import MAX_PROGRAM_CHARS
from tasks.verifiers.code.programs import Programs
from tasks.verifiers.code.running import Execution, keep_ends
from tasks.verifiers.code.service import CodeService
from tasks.verifiers.scores import CannotJudge

CONFIG = CodeConfig(test_seconds=1, total_seconds=2, memory_mib=256, output_bytes=10_000)
LIMITS = CONFIG.limits()
MANY = 100_000


def no_sandbox():
    try:
        open_sandbox(CONFIG).close()
    except SandboxError as error:
        return str(error)
    return None


pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif((reason := no_sandbox()) is not None, reason=str(reason)),
]


@pytest.fixture(scope="module")
def run():
    """Runs a program in the sandbox of a service."""
    programs = Programs(CONFIG, 1)
    yield lambda program: asyncio.run(programs.run(program))
    programs.close()


def posted(*bodies, programs=None, path="/run"):
    """Status and JSON or text of a service's answers to these requests."""
    of_its_own = Programs(CONFIG, 1)

    async def post():
        service = CodeService(programs or of_its_own, "namespaces", 8, None)
        async with TestClient(TestServer(service.build_application())) as client:
            for body in bodies:
                answer = await client.post(path, data=body if isinstance(body, bytes) else json.dumps(body))
                answers.append((answer.status, await (answer.json() if answer.status == 200 else answer.text())))

    answers = []
    try:
        asyncio.run(post())
    finally:
        of_its_own.close()
    return answers


def request(program="print(1)", output_chars=1000, **changed):
    return {"program": program, "output_chars": output_chars, "options": LIMITS} | changed


@pytest.mark.parametrize(
    ("program", "execution"),
    [
        ("print(1); print('\\u00e9')", Execution("1\n\u00e9\n")),
        ("", Execution("")),
        ("import sys\nprint('a'); sys.exit(3)", Execution("a\n", "exit status 3")),
        ("print('a', flush=True); 1 / 0", Execution("a\n", "exit status 1")),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", Execution("", "ended by signal 9")),
        ("x =", Execution("", "exit status 1")),
        ("print('a', flush=True)\nwhile True: pass", Execution("a\n", "time limit of the test", timed_out=True)),
        (
            "import time\nprint('a', flush=True)\ntime.sleep(9)",
            Execution("a\n", "time limit of the test", timed_out=True),
        ),
        ("while True: print('x' * 99)", Execution(("x" * 99 + "\n") * 100, "more than 10000 bytes of output")),
        ("print(input())", Execution("", "exit status 1")),
        ("import sys\nsys.stdout.buffer.write(b'\\xff')", Execution("\ufffd")),
        ("#" + "x" * MAX_PROGRAM_CHARS, Execution("", "a program of more than 200000 characters")),
    ],
)
def test_output_and_ending_of_a_program(run, program, execution):
    assert run(program) == execution


def test_a_program_leaves_nothing_to_the_next(run):
    assert run("import random\nrandom.left = 1\nopen('left', 'w').write('x')").ending in ("", "exit status 1")
    after = run("import os, random\nprint(hasattr(random, 'left'), os.path.exists('left'))")
    assert after == Execution("False False\n")


def test_a_program_that_needs_long_is_run_to_its_end_in_the_slow_queue():
    programs = Programs(CONFIG, 1)
    busy = "import time\nbegan = time.process_time()\nwhile time.process_time() < began + 0.4: pass\nprint(1)"
    try:
        assert asyncio.run(programs.run(busy)) == Execution("1\n")
        assert (programs.counters["programs"], programs.counters["patient"]) == (1, 1)
    finally:
        programs.close()


@pytest.mark.parametrize(
    ("chars", "text"),
    [
        (10, "abcdefghij"),
        (11, "abcdefghij"),
        (9, "abcde\n[1 characters left out]\nghij"),
        (2, "a\n[8 characters left out]\nj"),
        (1, "a\n[9 characters left out]\n"),
    ],
)
def test_head_and_tail_of_a_long_output_come_back(chars, text):
    assert keep_ends("abcdefghij", chars) == text


def test_a_service_runs_a_program_and_says_what_held_it():
    (status, answer), (_, cut), (_, failed) = posted(
        request(), request("print('a' * 100)", 4), request("print('a')\nraise SystemExit(2)")
    )
    assert status == 200
    assert answer.pop("version")
    assert answer == {
        "output": "1\n",
        "ending": "",
        "error": None,
        "timed_out": False,
        "isolation": "namespaces",
    }
    assert cut["output"] == "aa\n[97 characters left out]\na\n"
    assert (failed["output"], failed["ending"], failed["error"]) == ("a\n", "exit status 2", None)


REFUSED = {
    "no JSON": (b"{", 400),
    "no object": ([], 400),
    "no program": ({"output_chars": 1, "options": LIMITS}, 400),
    "a program that is no text": (request(program=1), 400),
    "one field more": (request(input="x"), 400),
    "no characters": (request(output_chars=0), 400),
    "too many characters": (request(output_chars=MANY + 1), 400),
    "a truth for a number": (request(output_chars=True), 400),
    "other limits": (request(options=LIMITS | {"memory_mib": 512}), 409),
    "a request for a judgement": ({"response": "", "ground_truth": {}, "options": LIMITS}, 400),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_request_is_refused(what):
    body, expected = REFUSED[what]
    ((status, _),) = posted(body)
    assert status == expected


def test_a_service_without_a_sandbox_says_so():
    class Broken:
        config = CONFIG

        async def run(self, program):
            raise CannotJudge("no sandbox here")

    class Buggy(Broken):
        async def run(self, program):
            raise KeyError("x")

    ((_, answer),) = posted(request(), programs=Broken())
    assert (answer["output"], answer["error"]) == ("", "no sandbox here")
    ((_, answer),) = posted(request(), programs=Buggy())
    assert answer["error"] == "code failed: KeyError: 'x'"


def test_a_client_runs_programs_beside_judgements_on_one_server():
    async def both():
        client = CodeClient(CONFIG)
        try:
            ran = await asyncio.gather(*(client.run(f"print({number})", 100) for number in range(8)))
            score = await client.judge(
                "code", "```python\nprint(1)\n```", {"cases": [{"input": "", "output": "1"}]}, None
            )
            large = await client.run("x" * MAX_RESPONSE_BYTES, 100)
            return ran, score, large, client.usage()
        finally:
            await client.close()

    ran, score, large, usage = asyncio.run(both())
    assert ran == [Execution(f"{number}\n") for number in range(8)]
    assert score.passed
    assert large.ending == f"a program of more than {MAX_RESPONSE_BYTES} bytes"
    assert usage["server/requests"] == 9


def test_a_pool_runs_programs_and_settles_those_that_it_is_closed_under():
    pool = VerifierPool(1, VerifiersConfig(code={"test_seconds": 60, "total_seconds": 60}))

    async def closed_meanwhile():
        assert await pool.run_program("print(1)", 100) == Execution("1\n")
        waiting = asyncio.create_task(pool.run_program("import time\ntime.sleep(50)", 100))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(pool.close)
        with pytest.raises(CannotJudge, match="the verifier pool was closed"):
            await waiting
        with pytest.raises(RuntimeError, match="the verifier pool was closed"):
            await pool.run_program("print(1)", 100)

    try:
        asyncio.run(asyncio.wait_for(closed_meanwhile(), 60))
    finally:
        pool.close()
