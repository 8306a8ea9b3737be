"""Client of a code server: sends a response and its tests, and receives the proportion that passes.

It can also send a program alone, for environments that let the policy run code. It then receives the output.

    CodeClient ── POST /judge {response, ground_truth, options} ────────► tasks.verifiers.code.server
               ◄── {value, passed, detail, error, isolation, version} ──┘
               ── POST /run {program, output_chars, options} ───────────►
               ◄── {output, ending, error, isolation, version} ─────────┘

The server is either named in the configuration, or started for this client and reached over a Unix socket. The client
turns the proportion into a score (`reward`, `min_proportion`), so that one server can be used by runs that reward
differently. The limits decide which tests pass; a server rejects requests with limits other than its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2
from pydantic import Field, ValidationError, model_validator

from tasks.config.loading import Config
from tasks.storage.addresses import AddressRefusedError
from tasks.storage.sent_files import SentFile, SentFileError, read_file
from tasks.verifiers.calls import Messages
from tasks.verifiers.code.config import CodeConfig, RemoteConfig
from tasks.verifiers.code.local import LocalServer
from tasks.verifiers.code.running import Execution
from tasks.verifiers.http_client import PASSING, Client, Traffic, read_key
from tasks.verifiers.scores import CannotJudge, GroundTruthError, Score

MAX_REQUEST_BYTES = 16 * 2**20
"""Maximum length of a request that a code server reads, in bytes."""
MAX_RESPONSE_BYTES = 4 * 2**20
"""Maximum length of a response that is sent, in bytes of JSON. A longer one scores 0, as no program is that long."""
LOCAL = RemoteConfig(
    url="http://localhost", concurrency=256, retries=3, request_timeout_seconds=86_400, timeout_seconds=86_400
)
"""Connection to a server that was started for this client. Its programs have their own limits, so requests may be
slow."""
UNLIMITED = httpx2.Limits(max_connections=None)
"""Connection pool without a limit: `concurrency` limits the requests."""
DIFFERENT_LIMITS = 409
"""HTTP status of a server's response to limits other than its own; a retry would not help."""
Answer = TypeVar("Answer", bound="About")


class About(Config):
    """Fields that all replies of a server have in common."""

    error: str | None
    """Reason why the program could not be run, or the response not be scored, or None on success."""
    timed_out: bool = Field(strict=True)
    """True if a time limit ended a program."""
    isolation: str
    """Mechanism that isolates the program: `namespaces` or `landlock`."""
    version: str
    """Digest of the code that ran it (`version`)."""


class Output(About):
    """Reply of the server to one program."""

    output: str
    """Standard output of the program, shortened."""
    ending: str
    """Reason why it did not end normally with exit status 0, or empty if it did."""


class Reply(About):
    """Reply of the server to one response."""

    value: float = Field(ge=0, le=1, strict=True)
    """Proportion of tests that pass, in [0, 1]."""
    passed: bool = Field(strict=True)
    """True if all tests pass."""
    detail: str
    """One human-readable line about the first test that failed."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.passed != (self.value == 1.0) or (self.error is not None and self.value):
            raise ValueError(f"value {self.value:g}, passed {self.passed} and error {self.error!r:.80} contradict")
        return self


@cache
def version() -> str:
    """Return a digest of the source files that verify programs, 16 hex digits: equal digests give equal scores.

    Unlike a stage's digest it does not include what these files import for other purposes, so that a change to another
    verifier does not require a new server. It does not cover the server's interpreter and isolation, either.
    """
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in (here.parent / "responses.py", *sorted(here.rglob("*.py"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class CodeClient:
    """A `Verifier` of programs that uses a code server. It belongs to one event loop.

    If it has its own server, the first call starts it.
    """

    def __init__(self, config: CodeConfig, workers: int = 1) -> None:
        """Create the client without opening a connection.

        Args:
            config: the server, the limits of programs, and how their tests are scored.
            workers: programs that its own server runs at the same time.

        Raises:
            ValueError: the variable that `token_env` names contains no token, or `certificate` is not a certificate.
        """
        self.isolation = ""
        self._config = config
        self._traffic = Traffic()
        self._judged: Counter[str] = Counter()
        self._server = LocalServer(config, workers) if config.remote is None else None
        self._connection = config.remote or LOCAL
        self._token = read_key("token_env", self._connection.token_env)
        self._trusted = _load_certificate(self._connection.certificate)
        self._connected: Client | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the client's own server, if it has one; raises `CannotJudge` if it cannot start."""
        await self._client()

    async def judge(self, verifier: str, response: str, ground_truth: Any, messages: Messages | None) -> Score:
        """Send one response to the server, and return its score under the options of this client.

        Raises:
            GroundTruthError: the ground truth cannot be serialized as JSON.
            CannotJudge: the server cannot be started, rejects the request, fails, is too slow, runs another version of
                the code, returns an invalid reply, or reports an error; or the tests are too large for a request.
        """
        request = {"response": response, "ground_truth": ground_truth, "options": self._config.limits()}
        content = _encode_request(request)
        if content is None:
            return Score.binary(False, f"a response of more than {MAX_RESPONSE_BYTES} bytes")
        reply = await self._send("/judge", content, Reply)
        return Score(self._config.score(reply.value), reply.passed, reply.detail, timed_out=reply.timed_out)

    async def run(self, program: str, output_chars: int) -> Execution:
        """Run a program without input, under the limits of one test.

        Args:
            program: its source.
            output_chars: maximum number of characters of its output to return, at most `running.MAX_OUTPUT_CHARS`. A
                longer output is cut to head and tail.

        Raises:
            CannotJudge: the server cannot be started, rejects the request, fails, is too slow, runs another version of
                the code, or returns an invalid reply.
        """
        request = {"program": program, "output_chars": output_chars, "options": self._config.limits()}
        content = json.dumps(request).encode()
        if len(content) > MAX_RESPONSE_BYTES:
            return Execution("", f"a program of more than {MAX_RESPONSE_BYTES} bytes")
        reply = await self._send("/run", content, Output)
        return Execution(reply.output, reply.ending, reply.timed_out)

    async def _send(self, path: str, content: bytes, kind: type[Answer]) -> Answer:
        """Return the reply of the server. If it is the client's own and ended during the request, try once more."""
        for is_last in (False, True):
            client = await self._client()
            try:
                reply = await client.judgement(partial(self._ask, client, path, content, kind))
                self.isolation = reply.isolation
                self._judged[f"by_{reply.isolation}"] += 1
                return reply
            except CannotJudge:
                if is_last or self._server is None or self._server.runs:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        """Close the connections and end the client's own server; calls in flight fail."""
        if self._connected is not None:
            await self._connected.close()
        if self._server is not None:
            self._server.close()

    def usage(self) -> dict[str, float]:
        """Return the counters of `Traffic`, and the number of programs run under each kind of isolation, by name."""
        return {**self._judged, **{f"server/{name}": value for name, value in self._traffic.to_dict().items()}}

    async def _client(self) -> Client:
        async with self._starting:
            if self._server is not None and not self._server.runs:
                path = await self._server.start()
                if self._connected is not None:
                    await self._connected.close()
                self._connected = self._make_client(httpx2.AsyncHTTPTransport(uds=path, limits=UNLIMITED))
            if self._connected is None:
                self._connected = self._make_client(httpx2.AsyncHTTPTransport(verify=self._trusted, limits=UNLIMITED))
            return self._connected

    def _make_client(self, transport: httpx2.AsyncHTTPTransport) -> Client:
        who, passing = "the code server", PASSING - {DIFFERENT_LIMITS}
        limits = self._connection
        return Client(who, limits.url, limits, self._traffic, self._token, passing, transport)

    async def _ask(self, client: Client, path: str, content: bytes, kind: type[Answer], deadline: float) -> Answer:
        body = await client.post(path, content, deadline)
        try:
            reply = kind.model_validate_json(body)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"])) or "the whole of it"
            raise client.make_error(f"returned an invalid answer: {where}: {problem['msg']}") from None
        if self._server is None and reply.version != version():
            raise client.make_error(
                f"runs other code (version {reply.version}, here {version()}): start it from the same commit"
            )
        if reply.error is not None:
            raise CannotJudge(reply.error) if self._server else client.make_error(f"could not judge: {reply.error}")
        return reply


def _load_certificate(certificate: str | SentFile | None) -> ssl.SSLContext | bool:
    if certificate is None:
        return True
    try:
        return ssl.create_default_context(cadata=read_file(certificate).decode())
    except (OSError, ValueError, ImportError, ssl.SSLError, AddressRefusedError, SentFileError) as error:
        raise ValueError(f"certificate = {str(certificate)!r} cannot be read: {error}") from None


def _encode_request(request: dict[str, Any]) -> bytes | None:
    """Return the body of a request, or None if the response is too large for one."""
    if len(json.dumps(request["response"])) > MAX_RESPONSE_BYTES:
        return None
    try:
        content = json.dumps(request).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise GroundTruthError(f"no JSON: {error}") from None
    if len(content) > MAX_REQUEST_BYTES:
        raise CannotJudge(
            f"the tests take {len(content)} bytes with a response; a request can have {MAX_REQUEST_BYTES}"
        )
    return content
