"""The code server's HTTP side.

    POST /judge    {response, ground_truth, options} -> {value, passed, detail, error, timed_out, isolation, version}
    GET /metrics   its isolation, version, options, load and counters
    GET /health    {"status": "ok"}; needs no token, as probes have none

`options` are the limits that the caller expects to be judged under. They belong to the sandboxes and cannot change from
request to request: where they are not the server's own, it answers 409 and names both. 401: no or a wrong token. 400: a
body that is no such request. 408, 413: a body that comes too slowly, or is too large. 503: all places are taken, or all
bytes that requests may hold.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import Counter
from typing import Any

from aiohttp import web
from pydantic import SecretStr

from tasks.verifiers.code.client import DIFFERENT_LIMITS, MAX_REQUEST_BYTES, version
from tasks.verifiers.code.programs import Programs
from tasks.verifiers.scores import CannotJudge, Score

READ_SECONDS = 30.0
"""Seconds within which the header of a request must arrive, and again its body."""
MAX_BYTES = 512 * 2**20
"""Bytes of all requests together that are read or judged at one time."""
RETRY_AFTER_SECONDS = 1
"""Seconds that a client is asked to wait after a 503."""
_FIELDS = {"response", "ground_truth", "options"}


class CodeService:
    """The handlers of a code server's HTTP requests."""

    def __init__(
        self, programs: Programs, isolation: str, places: int, token: SecretStr | None, max_bytes: int = MAX_BYTES
    ) -> None:
        """Create the handlers without listening.

        Args:
            programs: runs them; its options are the server's.
            isolation: the mechanism that holds its programs.
            places: requests that are read or judged at one time; a further one is answered with 503.
            token: the bearer token that a request must have; None: none is asked for.
            max_bytes: bodies of all these requests together; one that would exceed it is answered with 503.
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

    def application(self) -> web.Application:
        """Return the aiohttp application with all routes."""
        application = web.Application(client_max_size=MAX_REQUEST_BYTES)
        routes = [web.post("/judge", self._judge), web.get("/metrics", self._metrics), web.get("/health", self._health)]
        application.add_routes(routes)
        return application

    async def _judge(self, request: web.Request) -> web.Response:
        try:
            answer = await self._answer(request)
        except web.HTTPException as refused:
            self._answered[refused.status] += 1
            raise
        self._answered[answer.status] += 1
        return answer

    async def _answer(self, request: web.Request) -> web.Response:
        self._authorise(request)
        size = self._admit(request)
        self._under_way += 1
        self._bytes += size
        try:
            response, ground_truth = self._unpack(await _body(request))
            score = await self._score(response, ground_truth)
        finally:
            self._under_way -= 1
            self._bytes -= size
        return web.json_response(self._reply(score))

    async def _score(self, response: str, ground_truth: Any) -> Score:
        try:
            return await self._programs.judge(response, ground_truth)
        except CannotJudge as reason:
            return Score.unjudged(str(reason))
        except Exception as failure:  # a bug of ours must reach the caller as an error of this one judgement
            return Score.unjudged(f"code failed: {type(failure).__name__}: {failure}")

    def _authorise(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if self._expected is not None and not hmac.compare_digest(given, self._expected):
            raise web.HTTPUnauthorized(text="no token, or a wrong one", headers={"WWW-Authenticate": "Bearer"})

    def _admit(self, request: web.Request) -> int:
        """Return the bytes that the request may hold, or refuse it."""
        size = MAX_REQUEST_BYTES if request.content_length is None else request.content_length
        if size > MAX_REQUEST_BYTES:
            raise web.HTTPRequestEntityTooLarge(MAX_REQUEST_BYTES, size)
        retry = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        if self._under_way >= self._places:
            raise web.HTTPServiceUnavailable(text=f"all {self._places} places are taken", headers=retry)
        if self._bytes + size > self._max_bytes:
            raise web.HTTPServiceUnavailable(text=f"requests hold all {self._max_bytes} bytes", headers=retry)
        return size

    def _unpack(self, body: bytes) -> tuple[str, Any]:
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            raise web.HTTPBadRequest(text="the body is no JSON") from None
        if not isinstance(content, dict) or set(content) != _FIELDS or not isinstance(content["response"], str):
            raise web.HTTPBadRequest(text="want an object with response (text), ground_truth and options")
        if content["options"] != self._limits:
            received = f"{content['options']}"[:200]
            raise web.HTTPConflict(text=f"this server judges with the options {self._limits}, not with {received}")
        return content["response"], content["ground_truth"]

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        self._authorise(request)
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

    def _reply(self, score: Score) -> dict[str, Any]:
        return {
            "value": score.value,
            "passed": score.passed,
            "detail": _unicode(score.detail),
            "error": None if score.error is None else _unicode(score.error),
            "timed_out": score.timed_out,
            "isolation": self._isolation,
            "version": version(),
        }


assert web.HTTPConflict.status_code == DIFFERENT_LIMITS


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not come within {READ_SECONDS:g} s") from None


def _unicode(text: str) -> str:
    """Escape what is no Unicode in a text; a response can put it into an error message."""
    return text.encode("utf-8", "backslashreplace").decode()
