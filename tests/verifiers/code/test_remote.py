"""Code that is run by a server elsewhere: the same scores, and a failure that is an error by name, never a 0."""

import asyncio
import concurrent.futures
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import httpx2
import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.verifiers import Score, VerifierPool, VerifiersConfig
from tasks.verifiers.code import SandboxError, open_sandbox
from tasks.verifiers.code.client import MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES, CodeClient, version
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.programs import Programs
from tasks.verifiers.code.service import CodeService
from tests.examples import examples
from tests.paths import ROOT
from tests.verifiers.chat.fake_endpoint import FakeEndpoint, Reply, failing, scripted

TOKEN = "tok-very-secret-0123456789"  # noqa: S105
VARIABLE = "CODE_SERVER_TOKEN"
LIMITS = {"test_seconds": 1.0, "total_seconds": 2.0, "memory_mib": 256, "output_bytes": 10_000}
QUICK = {"backoff_seconds": 0.01, "max_backoff_seconds": 0.1}
GUARD_S = 60.0
DOUBLE = {"tests": ["assert double(1) == 2", "assert double(0) == 0", "assert double('a') == 'aa'"]}
ECHO = {"cases": [{"input": "1\n", "output": "1\n"}, {"input": "a b\n", "output": "a b\n"}]}
HANG = "```python\nimport time\ntime.sleep(60)\n```"


def fenced(program):
    return f"Here it is:\n```python\n{program}\n```\n"


CALLS = {
    "right": (fenced("def double(x):\n    return x * 2"), DOUBLE),
    "right of three": (fenced("def double(x):\n    return x + x if x else 1"), DOUBLE),
    "one of three": (fenced("def double(x):\n    return 0"), DOUBLE),
    "wrong": (fenced("def double(x):\n    return None"), DOUBLE),
    "no code": ("I cannot say.", DOUBLE),
    "no Python": (fenced("def double(x) return"), DOUBLE),
    "another name": (fenced("def twice(x):\n    return x * 2"), DOUBLE),
    "thinking": (
        "<think>" + fenced("def double(x): return 7") + "</think>" + fenced("def double(x): return 2*x"),
        DOUBLE,
    ),
    "ends": (fenced("import sys\nsys.exit(0)"), DOUBLE),
    "hangs": (fenced("def double(x):\n    while x == 0: pass\n    return 2 * x"), DOUBLE),
    "memory": (fenced("def double(x):\n    return [0] * (1 << 30)"), DOUBLE),
    "echo": (fenced("print(input())"), ECHO),
    "echo of one": (fenced("print(int(input()))"), ECHO),
    "flood": (fenced("print('x' * 100_000)"), ECHO),
    "unusual characters": (fenced("def double(x):\n    return x * 2  # \u65e5\u672c \x00 \U0001f600"), DOUBLE),
    "a lone surrogate": (fenced("def double(x):\n    return '\ud800'"), DOUBLE),
    "all is wanted of one": ("", {"tests": ["assert True"], "setup": ""}),
    "malformed": (fenced("x = 1"), {"tests": []}),
    "malformed too": (fenced("x = 1"), None),
}


def no_sandbox():
    try:
        open_sandbox(CodeConfig()).close()
    except SandboxError as error:
        return str(error)
    return None


pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif((reason := no_sandbox()) is not None, reason=str(reason)),
]


class CodeServer:
    """The real server in a process of its own, for the length of a block."""

    def __init__(self, *options, port=0, token=TOKEN):
        stated = [part for name, value in LIMITS.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        command = [sys.executable, "-m", "tasks.verifiers.code.server", "--port", str(port), *stated, *options]
        if token is not None:
            command += ["--token-env", VARIABLE]
        environment = {**os.environ, VARIABLE: token or ""}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.lines = []

    def __enter__(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if announced := re.search(r"code server on (\S+) port (\d+), isolation by \w+", line):
                break
        else:
            pytest.fail(f"the server did not start: {self.lines}")
        self.port = int(announced[2])
        self.url = f"http://127.0.0.1:{self.port}"
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(GUARD_S)
        self._reader.join(GUARD_S)
        self.process.stderr.close()

    def metrics(self, token=TOKEN):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx2.get(f"{self.url}/metrics", headers=headers, trust_env=False).raise_for_status().json()

    def post(self, body, token=TOKEN):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx2.post(f"{self.url}/judge", content=body, headers=headers, trust_env=False, timeout=GUARD_S)

    def wait_until_busy(self):
        deadline = time.monotonic() + GUARD_S
        while not self.metrics()["under_way"]:
            assert time.monotonic() < deadline, "never busy"
            time.sleep(0.02)


def remote(url, code=(), **options):
    named = {"url": url, "token_env": VARIABLE, **QUICK, **options}
    return VerifiersConfig(time_limit_seconds=8, code={**LIMITS, **dict(code), "remote": named})


def ask(url, response=CALLS["right"][0], truth=DOUBLE, code=(), **options):
    """The score of one response, and the client's counters."""
    with VerifierPool(1, remote(url, code, **options)) as pool:
        score = pool.submit("code", response, truth).result(GUARD_S)
        figures = pool.figures()
    return score, {k.removeprefix("code/server/"): v for k, v in figures.items() if "/server/" in k}


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv(VARIABLE, TOKEN)


@pytest.fixture(scope="module")
def server():
    with CodeServer("--workers", "2") as running:
        yield running


def fake(*replies):
    return FakeEndpoint(scripted(*replies), base="", path="/judge")


def reply(**changes):
    fields = {"value": 0.5, "passed": False, "detail": "1 of 2", "error": None, "version": version()}
    fields |= {"timed_out": False, "isolation": "namespaces"} | changes
    return Reply(json.dumps({k: v for k, v in fields.items() if v is not ...}).encode())


@pytest.mark.parametrize(
    "reward",
    [
        pytest.param({}, id="proportion"),
        pytest.param({"min_proportion": 0.5}, id="at least half", marks=pytest.mark.complete),
        pytest.param({"reward": "all_or_nothing"}, id="all or nothing", marks=pytest.mark.complete),
    ],
)
def test_a_server_scores_as_a_process_of_ours_does_however_it_is_rewarded(server, reward):
    calls = [("code", *call) for call in CALLS.values()]
    with VerifierPool(2, VerifiersConfig(time_limit_seconds=8, code=LIMITS | reward)) as pool:
        own = pool.score_many(calls)
    with VerifierPool(1, remote(server.url, reward)) as pool:
        elsewhere = pool.score_many(calls)
    for name, ours, theirs in zip(CALLS, own, elsewhere, strict=True):
        if ours.error is None:
            assert theirs == ours, name
        else:
            assert theirs.error == f"the code server at {server.url} could not judge: {ours.error}", name
    assert len({score.value for score in own}) >= (4 if not reward else 2)
    assert sum(score.error is not None for score in own) == 2


@pytest.mark.parametrize("given", ["wrong", "", None])
def test_a_wrong_token_or_none_is_refused_at_once(server, monkeypatch, given):
    answer = server.post(b"{}", given)
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    if given:
        monkeypatch.setenv(VARIABLE, given)
        score, usage = ask(server.url)
        assert f"the code server at {server.url} refused the request: HTTP 401" in score.error
        assert (usage["requests"], usage["failures"]) == (1, 1)


def test_a_token_that_is_missing_here_is_a_mistake_that_names_the_variable(monkeypatch):
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ValueError, match=f"token_env.* {VARIABLE}.* not set"):
        CodeClient(remote("http://127.0.0.1:9").code)


def test_limits_that_are_not_the_servers_are_refused_and_both_are_named(server):
    score, usage = ask(server.url, code={"memory_mib": 1024})
    assert "HTTP 409" in score.error
    assert all(f"'memory_mib': {value}" in server.post(request(memory_mib=1024)).text for value in (256, 1024))
    assert usage["requests"] == 1


def request(response="x = 1", truth=DOUBLE, **limits):
    options = CodeConfig(**LIMITS).limits() | limits
    return json.dumps({"response": response, "ground_truth": truth, "options": options}).encode()


def test_nothing_listens():
    with fake(reply()) as endpoint:
        pass
    score, usage = ask(endpoint.url, retries=2)
    assert score.error.startswith(f"the code server at {endpoint.url} failed 3 times, at last: ConnectError")
    assert (usage["requests"], usage["failures"]) == (3, 1)


@pytest.mark.complete
def test_a_server_that_is_killed_under_a_request_is_an_error_and_the_next_server_judges_it():
    with CodeServer() as first, VerifierPool(1, remote(first.url, retries=2)) as pool:
        lost = pool.submit("code", HANG, DOUBLE)
        first.wait_until_busy()
        first.process.kill()
        assert "failed 3 times, at last: Connect" in lost.result(GUARD_S).error
    patient = {"retries": 1000, "max_backoff_seconds": 0.2}
    with CodeServer(port=first.port) as second, VerifierPool(1, remote(second.url, **patient)) as pool:
        running = pool.submit("code", HANG, DOUBLE)
        second.wait_until_busy()
        second.process.kill()
        second.process.wait()
        with CodeServer(port=first.port):
            score = running.result(GUARD_S)
    assert (score.value, score.error) == (0.0, None)
    assert "time limit" in score.detail


@pytest.mark.complete
def test_a_server_that_is_told_to_end_answers_what_is_under_way_first():
    with CodeServer() as server, VerifierPool(1, remote(server.url, retries=0)) as pool:
        waiting = pool.submit("code", HANG, DOUBLE)
        server.wait_until_busy()
        server.process.terminate()
        score = waiting.result(GUARD_S)
        assert server.process.wait(GUARD_S) == 0
    assert (score.value, score.error) == (0.0, None)
    assert server.lines[-1].endswith("code server ended\n")
    assert not [line for line in server.lines if "Traceback" in line]


def test_a_slow_server_is_an_error_within_the_limits():
    with fake(Reply(delay_s=600)) as endpoint:
        score, usage = ask(endpoint.url, request_timeout_seconds=0.3, retries=1)
        assert "failed 2 times, at last: no answer within 0.3 s" in score.error
        assert (usage["retries"], usage["failures"]) == (1, 1)
        score, _ = ask(endpoint.url, request_timeout_seconds=0.3, timeout_seconds=0.5, retries=50)
        assert "limit of 0.5 s" in score.error or "took longer than 0.5 s" in score.error
    with fake(Reply(delay_s=600), reply(value=1.0, passed=True)) as endpoint:
        assert ask(endpoint.url, request_timeout_seconds=0.3)[0].value == 1.0


@pytest.mark.complete
def test_a_full_server_says_when_to_come_back_and_all_are_judged_in_the_end():
    with CodeServer("--places", "1") as server:
        with VerifierPool(1, remote(server.url)) as pool:
            hanging = pool.submit("code", HANG, DOUBLE)
            server.wait_until_busy()
            answer = server.post(request())
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert hanging.result(GUARD_S).value == 0.0
            done = pool.score_many(("code", f"{CALLS['right'][0]}\n{i}", DOUBLE) for i in range(3))
            figures = pool.figures()
        assert [score.value for score in done] == [1.0] * 3
        assert figures["code/server/retries"] == server.metrics()["answered"]["503"] - 1 > 0


def test_what_is_too_large_is_not_sent_and_not_read(server):
    with fake(reply()) as endpoint:
        score, _ = ask(endpoint.url, "x" * MAX_RESPONSE_BYTES)
        assert (score.value, score.detail) == (0.0, f"a response of more than {MAX_RESPONSE_BYTES} bytes")
        score, _ = ask(endpoint.url, truth={"tests": ["x" * MAX_REQUEST_BYTES]})
        assert f"a request can have {MAX_REQUEST_BYTES}" in score.error
        assert endpoint.requests == []
    assert server.post(b" " * (MAX_REQUEST_BYTES + 1)).status_code == 413
    chunks = (b" " * 2**20 for _ in range(MAX_REQUEST_BYTES // 2**20 + 1))
    assert server.post(chunks).status_code == 413
    assert ask(server.url)[0].value == 1.0


GARBAGE = {
    "a page": Reply(b"<html>it works</html>"),
    "nothing": Reply(b""),
    "a list": Reply(b"[]"),
    "above 1": reply(value=1.5),
    "below 0": reply(value=-0.5),
    "no number": Reply(b'{"value": NaN, "passed": false, "detail": "", "error": null, "version": ""}'),
    "text for a number": reply(value="0.5"),
    "a number for a truth": reply(value=1.0, passed=1),
    "passed without a 1": reply(passed=True),
    "a 1 that did not pass": reply(value=1.0),
    "value and error": reply(error="the sandbox failed"),
    "no value": reply(value=...),
    "no version": reply(version=...),
    "one field more": reply(reward=1.0),
    "no text": reply(detail=7),
    "deep": Reply(b"[" * 100_000),
    "other code": reply(version="0123456789abcdef"),
    "an error": reply(value=0.0, error="no sandbox with namespaces here"),
    "elsewhere": failing(302, Location="http://127.0.0.1:1/"),
    "not found": failing(404),
}


@pytest.mark.parametrize("answer", GARBAGE.values(), ids=GARBAGE)
def test_an_answer_that_is_no_judgement_is_an_error(answer):
    with fake(answer) as endpoint:
        score, usage = ask(endpoint.url)
    assert score.error is not None
    assert score.error.startswith(f"the code server at {endpoint.url} ")
    assert (usage["requests"], usage["failures"]) == (1, 1)


def test_an_answer_that_is_one_is_the_score():
    with fake(reply()) as endpoint:
        score, usage = ask(endpoint.url)
    assert (score.value, score.passed, score.detail, score.error) == (0.5, False, "1 of 2", None)
    assert (usage["requests"], usage["failures"]) == (1, 0)
    headers, body = endpoint.requests[0]
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert body["options"] == CodeConfig(**LIMITS).limits()


@pytest.mark.parametrize("truth", [object(), {"tests": [{1, 2}]}, lambda: 0])
def test_a_ground_truth_that_is_no_json_is_malformed(truth):
    with fake(reply()) as endpoint:
        score, _ = ask(endpoint.url, truth=truth)
    assert score.error.startswith("malformed ground truth: no JSON")
    assert endpoint.requests == []


def test_closing_the_pool_settles_what_is_at_the_server():
    with fake(Reply(delay_s=600)) as endpoint:
        pool = VerifierPool(1, remote(endpoint.url))
        waiting = pool.submit("code", HANG, DOUBLE)
        while not endpoint.requests:
            time.sleep(0.01)
        pool.close()
        assert waiting.result(GUARD_S).error == "the verifier pool was closed"


def test_many_at_a_time_are_judged_each_once(server):
    before = server.metrics()["answered"].get("200", 0)
    with VerifierPool(1, remote(server.url)) as pool:
        calls = [("code", fenced(f"def double(x):\n    return x * {2 + i % 2}  # {i}"), DOUBLE) for i in range(30)]
        scores = pool.score_many(calls)
    assert [score.passed for score in scores] == [i % 2 == 0 for i in range(30)]
    assert server.metrics()["answered"]["200"] - before == 30


bodies = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda values: (
        st.lists(values, max_size=3)
        | st.dictionaries(st.sampled_from(["response", "ground_truth", "options", "x"]), values, max_size=4)
    ),
)


@pytest.mark.complete
@settings(max_examples=examples(100), deadline=None)
@given(bodies.map(json.dumps).map(str.encode) | st.binary(max_size=40))
def test_what_is_no_request_is_refused_and_changes_nothing(server, body):
    assert server.post(body).status_code in (400, 409)


def test_health_needs_no_token_and_tells_nothing_metrics_do(server):
    assert httpx2.get(f"{server.url}/health", trust_env=False).json() == {"status": "ok"}
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        assert httpx2.get(f"{server.url}/metrics", headers=headers, trust_env=False).status_code == 401
    metrics = server.metrics()
    assert metrics["isolation"] in ("namespaces", "landlock")
    assert (metrics["workers"], metrics["places"], metrics["under_way"], metrics["bytes"]) == (2, 256, 0, 0)
    assert (metrics["version"], metrics["options"]) == (version(), CodeConfig(**LIMITS).limits())
    assert httpx2.get(f"{server.url}/elsewhere", trust_env=False).status_code == 404


def test_a_request_is_one_line_of_log_that_holds_neither_its_content_nor_a_token(capfd):
    private = "reasoning-about-doubling"
    with CodeServer() as server:
        score, _ = ask(server.url, fenced(f"import os\ndef double(x):\n    raise ValueError({private!r}, *os.environ)"))
        texts = [score.detail, server.post(request(), "tok-wrong").text, json.dumps(server.metrics())]
        server.post(b'{"response": "' + private.encode())
    judged = [line for line in server.lines if "POST /judge" in line]
    assert [line.split()[-3] for line in judged] == ["200", "401", "400"]
    log = "".join(server.lines)
    assert private not in log
    assert not [text for text in (*texts, log, *capfd.readouterr()) if TOKEN in text or "tok-wrong" in text]
    assert VARIABLE not in score.detail


def start(*options, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "tasks.verifiers.code.server", "--port", "0", *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=GUARD_S,
    )
    assert done.returncode == 1
    return done.stderr.strip()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 can be reached from elsewhere: --token-env must name a token's variable"),  # noqa: S104
        (["--token-env", "NO_SUCH_TOKEN"], "--token-env names NO_SUCH_TOKEN, which is not set in the environment"),
        (["--total-seconds", "1"], "its options: the whole file: test_seconds (6) is more than total_seconds (1)"),
        (["--memory-mib", "few"], "its options: memory_mib = 'few': must be a valid integer"),
        (["--workers", "0"], "workers is 0; it must be above 0"),
        (["--certificate", "shown.pem"], "--certificate and --key go together"),
        (["--python", "/bin/false"], "code.python = '/bin/false' does not run"),
    ],
)
def test_what_cannot_serve_says_why_in_a_sentence_and_does_not_start(options, reason):
    printed = start(*options)
    assert printed.startswith(f"the code server cannot start: {reason}")
    assert "\n" not in printed


def test_a_server_does_not_start_where_no_sandbox_works(tmp_path):
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho setting up uid map: Permission denied >&2; exit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    printed = start("--isolation", "namespaces", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert printed.startswith("the code server cannot start: no sandbox with namespaces here: ")
    assert "Permission denied" in printed
    assert "\n" not in printed


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"url": "ftp://host"}, "base URL of a code server"),
        ({"url": "http://ann:secret@host"}, "token_env"),
        ({"url": "http://host", "token_env": "two words"}, "token_env"),
        ({"url": "http://host", "backoff_seconds": 99}, "max_backoff_seconds"),
    ],
)
def test_a_mistake_in_the_options_is_named(options, named):
    with pytest.raises(ValidationError, match=named):
        CodeConfig(remote=options)


@pytest.mark.parametrize("option", [{"isolation": "landlock"}, {"python": "/usr/bin/python3"}])
def test_what_a_server_decides_cannot_be_said_beside_it(option):
    with pytest.raises(ValidationError, match=r"isolation and python.*remote"):
        CodeConfig(remote={"url": "http://host"}, **option)


def certificate(folder):
    """A key, and a certificate by itself for this machine, as files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(encoding))
    files[1].write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    return tuple(map(str, files))


def test_a_server_with_a_certificate_is_asked_over_tls_and_is_not_trusted_without(tmp_path):
    shown, key = certificate(tmp_path)
    with CodeServer("--certificate", shown, "--key", key) as server:
        url = f"https://localhost:{server.port}"
        assert ask(url, certificate=shown)[0].value == 1.0
        assert "certificate verify failed" in ask(url, retries=0)[0].error.lower()
        assert ask(server.url, retries=0)[0].error is not None


def test_a_certificate_that_is_no_file_is_a_mistake_that_names_it(tmp_path):
    with pytest.raises(ValueError, match=r"certificate = .*nowhere\.pem"):
        CodeClient(remote("https://localhost:9", certificate=str(tmp_path / "nowhere.pem")).code)


async def answers_to(*sizes, max_bytes, places=8):
    """The states that requests of these sizes get that come at the same time, and what the service holds afterwards."""

    class Slow:
        config, counters, workers = CodeConfig(**LIMITS), {}, 1

        async def judge(self, response, ground_truth):
            await asyncio.sleep(0.5)
            return Score.binary(True, "")

    service = CodeService(Slow(), "namespaces", places, None, max_bytes)
    async with TestClient(TestServer(service.build_application())) as client:
        bodies = [request("x" * size) for size in sizes]
        states = [answer.status for answer in await asyncio.gather(*(client.post("/judge", data=b) for b in bodies))]
        return states, (await (await client.get("/metrics")).json())["bytes"]


def test_requests_hold_no_more_bytes_together_than_they_may():
    states, held = asyncio.run(answers_to(6000, 6000, 100, max_bytes=10_000))
    assert (sorted(states), held) == ([200, 200, 503], 0)


@pytest.mark.complete
def test_a_header_or_a_body_that_does_not_come_ends_the_connection(monkeypatch):
    monkeypatch.setattr("tasks.verifiers.code.service.READ_SECONDS", 0.3)

    async def what_is_answered(sent):
        service = CodeService(Programs(CodeConfig(**LIMITS), 1), "namespaces", 8, None)
        server = TestServer(service.build_application())
        await server.start_server(keepalive_timeout=0.3)
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(sent)
        try:
            async with asyncio.timeout(GUARD_S):
                return await reader.read()
        finally:
            writer.close()
            await server.close()

    half_a_body = b"POST /judge HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{"
    assert asyncio.run(what_is_answered(half_a_body)).startswith(b"HTTP/1.1 408")
    assert asyncio.run(what_is_answered(b"POST /ju")) == b""


def test_the_server_ends_at_an_interrupt_too():
    with CodeServer() as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(GUARD_S) == 0


def test_a_server_without_a_token_serves_everybody_on_this_machine():
    with CodeServer(token=None) as server, concurrent.futures.ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: server.post(request(), None), range(8)))
        assert {answer.status_code for answer in answers} == {200}
        assert ask(server.url, token_env=None)[0].value == 1.0
