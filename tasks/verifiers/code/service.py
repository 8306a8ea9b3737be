"""Implements the HTTP API of the code server.

    POST /judge    {response, ground_truth, options} -> {value, passed, detail, error, timed_out, isolation, version}
    POST /run      {program, output_chars, options} -> {output, ending, error, timed_out, isolation, version}
    GET /metrics   its isolation, version, options, load and counters
    GET /health    {"status": "ok"}; needs no token, as probes have none

`/run` runs a program without input, under the limits of one test. If its output has more than `output_chars`
characters, only head and tail are returned.

`options` are the limits that the caller expects. They belong to the sandboxes and cannot change between requests: if
they differ from the server's, the response is 409 and contains both. 401: no or a wrong token. 400: the body is not
such a request. 408, 413: the body arrives too slowly, or is too large. 503: the maximum number of requests, or of bytes
in requests, is reached.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web
from pydantic import SecretStr

from tasks.verifiers.code.client import DIFFERENT_LIMITS, MAX_REQUEST_BYTES, version
from tasks.verifiers.code.programs import Programs
from tasks.verifiers.code.running import MAX_OUTPUT_CHARS, Execution, keep_ends
from tasks.verifiers.scores import CannotJudge, Score

READ_SECONDS = 30.0
"""Seconds within which the header of a request must arrive, and then its body."""
MAX_BYTES = 512 * 2**20
"""Maximum number of bytes of all requests that are being read or processed."""
RETRY_AFTER_SECONDS = 1
"""Seconds after which a client may retry after a 503."""
Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Handles the content of an accepted request, and returns the response without the fields of all responses."""


class CodeService:
    """Handles the HTTP requests of a code server."""

    def __init__(
        self, programs: Programs, isolation: str, places: int, token: SecretStr | None, max_bytes: int = MAX_BYTES
    ) -> None:
        """Create the handlers without listening.

        Args:
            programs: runs the programs; its options are the server's.
            isolation: the mechanism that isolates the programs.
            places: number of requests that are read or processed at the same time; a further one is answered with 503.
            token: the bearer token that a request must contain. Optional. If None, no token is required.
            max_bytes: bytes of all these requests together; a request that would exceed it is answered with 503.
        """
        self._programs = programs
        self._isolation = isolation
        self._places = places
        self._max_bytes = max_bytes
        self._expected = None if token is None else f"Bearer {token.get_secret_value()}".encode()
        self._limits = programs.config.limits()
        self._under_way = 0
        self._bytes = 0
        self._answered: Counter[int] = Counter()

    def build_application(self) -> web.Application:
        """Return the aiohttp application with all routes."""
        application = web.Application(client_max_size=MAX_REQUEST_BYTES)
        routes = [
            web.post("/judge", partial(self._answer, answer=self._judgement)),
            web.post("/run", partial(self._answer, answer=self._execution)),
            web.get("/metrics", self._metrics),
            web.get("/health", self._health),
        ]
        application.add_routes(routes)
        return application

    async def _answer(self, request: web.Request, answer: Answer) -> web.Response:
        try:
            response = web.json_response(await self._handle(request, answer) | self._describe_server())
        except web.HTTPException as refused:
            self._answered[refused.status] += 1
            raise
        self._answered[response.status] += 1
        return response

    async def _handle(self, request: web.Request, answer: Answer) -> dict[str, Any]:
        self._check_token(request)
        size = self._admit(request)
        self._under_way += 1
        self._bytes += size
        try:
            return await answer(_parse_content(await _read_body(request)))
        finally:
            self._under_way -= 1
            self._bytes -= size

    async def _judgement(self, content: dict[str, Any]) -> dict[str, Any]:
        if content.keys() != {"response", "ground_truth", "options"} or not isinstance(content["response"], str):
            raise web.HTTPBadRequest(text="expected an object with response (text), ground_truth and options")
        self._check_limits(content["options"])
        try:
            score = await self._programs.judge(content["response"], content["ground_truth"])
        except Exception as failure:
            score = Score.from_error(_describe_failure(failure))
        return {
            "value": score.value,
            "passed": score.passed,
            "detail": _escape_unicode(score.detail),
            "error": None if score.error is None else _escape_unicode(score.error),
            "timed_out": score.timed_out,
        }

    async def _execution(self, content: dict[str, Any]) -> dict[str, Any]:
        if content.keys() != {"program", "output_chars", "options"} or not isinstance(content["program"], str):
            raise web.HTTPBadRequest(text="expected an object with program (text), output_chars and options")
        chars = content["output_chars"]
        if type(chars) is not int or not 0 < chars <= MAX_OUTPUT_CHARS:
            raise web.HTTPBadRequest(text=f"output_chars must be an integer from 1 to {MAX_OUTPUT_CHARS}")
        self._check_limits(content["options"])
        run, error = Execution(""), None
        try:
            run = await self._programs.run(content["program"])
        except Exception as failure:
            error = _escape_unicode(_describe_failure(failure))
        output = _escape_unicode(keep_ends(run.output, chars))
        return {"output": output, "ending": run.ending, "error": error, "timed_out": run.timed_out}

    def _describe_server(self) -> dict[str, Any]:
        """Return the fields about this server in every response."""
        return {"isolation": self._isolation, "version": version()}

    def _check_token(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if self._expected is not None and not hmac.compare_digest(given, self._expected):
            raise web.HTTPUnauthorized(text="no token, or a wrong one", headers={"WWW-Authenticate": "Bearer"})

    def _admit(self, request: web.Request) -> int:
        """Return the maximum number of bytes of the request, or refuse it."""
        size = MAX_REQUEST_BYTES if request.content_length is None else request.content_length
        if size > MAX_REQUEST_BYTES:
            raise web.HTTPRequestEntityTooLarge(MAX_REQUEST_BYTES, size)
        retry = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        if self._under_way >= self._places:
            raise web.HTTPServiceUnavailable(text=f"all {self._places} places are taken", headers=retry)
        if self._bytes + size > self._max_bytes:
            raise web.HTTPServiceUnavailable(text=f"requests use all {self._max_bytes} bytes", headers=retry)
        return size

    def _check_limits(self, options: Any) -> None:
        if options != self._limits:
            received = f"{options}"[:200]
            raise web.HTTPConflict(text=f"this server judges with the options {self._limits}, not with {received}")

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        self._check_token(request)
        return web.json_response(
            {
                "isolation": self._isolation,
                "workers": self._programs.workers,
                "version": version(),
                "options": self._limits,
                "places": self._places,
                "under_way": self._under_way,
                "bytes": self._bytes,
                "answered": {str(status): count for status, count in self._answered.items()},
                "counters": self._programs.counters,
            }
        )


assert web.HTTPConflict.status_code == DIFFERENT_LIMITS


async def _read_body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not arrive within {READ_SECONDS:g} s") from None


def _parse_content(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="the body is not JSON") from None
    if not isinstance(content, dict):
        raise web.HTTPBadRequest(text="the body is not a JSON object")
    return content


def _describe_failure(failure: Exception) -> str:
    """Return why a program could not be run. A bug must reach the caller as an error of this one program."""
    return str(failure) if isinstance(failure, CannotJudge) else f"code failed: {type(failure).__name__}: {failure}"


def _escape_unicode(text: str) -> str:
    """Escape invalid Unicode in a text, because a response can put it into an error message."""
    return text.encode("utf-8", "backslashreplace").decode()
