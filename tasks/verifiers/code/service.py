"""The code server's HTTP side.

    POST /judge   {response, ground_truth, options} -> {value, passed, detail, error, version}
    GET /health   what it is and how it does; needs no token, as probes have none

`options` are the limits that the caller expects to be judged under. They belong to the worker processes and cannot
change from request to request: where they are not the server's own, it answers 409 and names both. 401: no or a wrong
token. 400: no request of ours. 408, 413: a body that comes too slowly, or is too large. 503: all places are taken.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import Counter
from typing import Any

from aiohttp import web
from pydantic import SecretStr

from tasks.verifiers.code.remote import DIFFERENT_LIMITS, MAX_REQUEST_BYTES, version
from tasks.verifiers.pool import VerifierPool
from tasks.verifiers.scores import Score

READ_SECONDS = 30.0
RETRY_AFTER_SECONDS = 1
_FIELDS = {"response", "ground_truth", "options"}


class CodeService:
    """Answers requests with the scores of a pool."""

    def __init__(self, pool: VerifierPool, isolation: str, places: int, token: SecretStr | None) -> None:
        """Answer nothing yet.

        Args:
            pool: judges; its `code` options are the server's.
            isolation: what holds its programs.
            places: requests that are read or judged at one time; a further one is sent away.
            token: what a request to judge must bear; None where everybody may.
        """
        self._pool = pool
        self._isolation = isolation
        self._places = places
        self._expected = None if token is None else f"Bearer {token.get_secret_value()}".encode()
        self._limits = pool.config.code.limits()
        self._under_way = 0
        self._answered: Counter[int] = Counter()

    def application(self) -> web.Application:
        """The application, for aiohttp to run."""
        application = web.Application(client_max_size=MAX_REQUEST_BYTES)
        application.add_routes([web.post("/judge", self._judge), web.get("/health", self._health)])
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
        self._admit(request)
        self._under_way += 1
        try:
            response, ground_truth = self._unpack(await _body(request))
            score = await self._pool.score("code", response, ground_truth)
        finally:
            self._under_way -= 1
        return web.json_response(_reply(score))

    def _admit(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if self._expected is not None and not hmac.compare_digest(given, self._expected):
            raise web.HTTPUnauthorized(text="no token, or a wrong one", headers={"WWW-Authenticate": "Bearer"})
        if self._under_way >= self._places:
            raise web.HTTPServiceUnavailable(
                text=f"all {self._places} places are taken", headers={"Retry-After": str(RETRY_AFTER_SECONDS)}
            )

    def _unpack(self, body: bytes) -> tuple[str, Any]:
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            raise web.HTTPBadRequest(text="the body is no JSON") from None
        if not isinstance(content, dict) or set(content) != _FIELDS or not isinstance(content["response"], str):
            raise web.HTTPBadRequest(text="want an object with response (text), ground_truth and options")
        if content["options"] != self._limits:
            said = f"{content['options']}"[:200]
            raise web.HTTPConflict(text=f"this server judges with the options {self._limits}, not with {said}")
        return content["response"], content["ground_truth"]

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "isolation": self._isolation,
                "workers": self._pool.workers,
                "version": version(),
                "options": self._limits,
                "places": self._places,
                "under_way": self._under_way,
                "answered": {str(status): count for status, count in self._answered.items()},
                "counters": self._pool.figures(),
            }
        )


assert web.HTTPConflict.status_code == DIFFERENT_LIMITS


async def _body(request: web.Request) -> bytes:
    if (request.content_length or 0) > MAX_REQUEST_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_REQUEST_BYTES, request.content_length or 0)
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not come within {READ_SECONDS:g} s") from None


def _reply(score: Score) -> dict[str, Any]:
    return {
        "value": score.value,
        "passed": score.passed,
        "detail": _unicode(score.detail),
        "error": None if score.error is None else _unicode(score.error),
        "version": version(),
    }


def _unicode(text: str) -> str:
    """The text with what is no Unicode escaped, which a response can put into an error message."""
    return text.encode("utf-8", "backslashreplace").decode()
