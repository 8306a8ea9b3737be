"""HTTP client of a judge elsewhere: answers are bounded, failures retried, requests counted and limited in number.

A request is repeated after a failure that may pass: HTTP 408, 409, 429 or 5xx, a broken connection, a timeout. Any
other failure (a wrong key, an unknown model) is `CannotJudge` at once. The key lives in the headers of the client and
in no text that leaves it.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TypeVar

import httpx2
from pydantic import SecretStr

from tasks.failures import one_line
from tasks.verifiers.connection import ConnectionConfig
from tasks.verifiers.scores import CannotJudge

MAX_BODY_BYTES = 4 * 2**20
"""Longest answer that is read, in bytes."""
MAX_ERROR_CHARS = 400  # characters of an error
"""Longest error, in characters."""
PASSING = frozenset({408, 409, 429, *range(500, 600)})
"""HTTP states after which a request is repeated."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of this machine, which are reached without a proxy."""

Result = TypeVar("Result")


@dataclass
class Traffic:
    """Counters of the requests to a judge elsewhere.

    Attributes:
        requests: requests sent, repetitions included.
        retries: repetitions, for whatever reason.
        failures: judgements that ended without a result.
        seconds: seconds summed over the judgements, without their wait in the queue.
    """

    requests: int = 0
    retries: int = 0
    failures: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the counters by name."""
        return asdict(self)


class _Passing(Exception):  # noqa: N818 - a state of affairs, not an error of ours
    """A failure that may pass. `wait` is the server's `Retry-After` in seconds, or None."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class RefusedError(CannotJudge):
    """The server refused a request for good.

    Attributes:
        status: HTTP status of the answer.
        explanation: the server's reason, shortened.
    """

    def __init__(self, reason: str, status: int, explanation: str) -> None:
        super().__init__(reason)
        self.status = status
        self.explanation = explanation


@cache
def _certificates(*, trust_env: bool) -> ssl.SSLContext:
    """Read the certificates of authorities, which takes 50 ms, once for all clients."""
    return httpx2.create_ssl_context(trust_env=trust_env)


class Client:
    """An HTTP client of one judge or code server, with retries and limits.

    It belongs to the event loop that uses it first.
    """

    def __init__(
        self,
        who: str,
        url: str,
        config: ConnectionConfig,
        traffic: Traffic,
        key: SecretStr | None,
        passing: frozenset[int] = PASSING,
        transport: httpx2.AsyncHTTPTransport | None = None,
    ) -> None:
        """Create the client without opening a connection.

        Args:
            who: the name of the server in errors.
            url: its base URL.
            config: limits and retries.
            traffic: the counters to update.
            key: sent as a bearer token.
            passing: HTTP states after which a request is repeated.
            transport: the connection to the server; None for the HTTP library's own.
        """
        self._who = f"{who} at {url}"
        self._url = url
        self._limits = config
        self._traffic = traffic
        self._key = key
        self._passing = passing
        self._in_flight = asyncio.Semaphore(config.concurrency)
        outside = httpx2.URL(url).host not in LOOPBACK
        headers = {"Accept-Encoding": "identity"}  # what is compressed could not be bounded as it is read
        if key is not None:
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        self._client = httpx2.AsyncClient(
            headers=headers,
            timeout=None,
            transport=transport,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=config.concurrency),
            verify=_certificates(trust_env=outside),
            trust_env=outside,  # no proxy stands before this machine
        )

    async def judgement(self, work: Callable[[float], Awaitable[Result]]) -> Result:
        """Await `work` once a slot of `concurrency` is free, within `timeout_seconds`, and return its result.

        Args:
            work: takes the deadline by `time.monotonic()` that its requests must observe.

        Raises:
            CannotJudge: raised by `work`, or the limit was reached; counted as a failure.
        """
        limit = self._limits.timeout_seconds
        async with self._in_flight:
            started = time.monotonic()
            try:
                async with asyncio.timeout(limit):
                    return await work(started + limit)
            except TimeoutError:
                self._traffic.failures += 1
                raise self.failed(f"took longer than {limit:g} s over a judgement") from None
            except CannotJudge:
                self._traffic.failures += 1
                raise
            finally:
                self._traffic.seconds += time.monotonic() - started

    async def post(self, path: str, content: bytes, deadline: float) -> bytes:
        """Send one request with a JSON body and return the body of the answer; no wait reaches beyond the deadline.

        Raises:
            CannotJudge: refused, or not answered within the retries or before the deadline.
        """
        limits = self._limits
        attempt = 0
        while True:
            try:
                return await self._once(path, content)
            except _Passing as failure:
                if attempt == limits.retries:
                    raise self.failed(f"failed {attempt + 1} times, at last: {failure}") from None
                wait = failure.wait if failure.wait is not None else self._backoff(attempt)
                if time.monotonic() + wait >= deadline:
                    raise self.failed(
                        f"failed ({failure}), and a wait of {wait:.1f} s would pass the limit of "
                        f"{limits.timeout_seconds:g} s"
                    ) from None
            await asyncio.sleep(wait)
            attempt += 1
            self._traffic.retries += 1

    def failed(self, what: str) -> CannotJudge:
        """Return an error that names the server. The key, should `what` quote it, is taken out before any cut."""
        if self._key is not None:
            what = what.replace(self._key.get_secret_value(), "[key]")
        return CannotJudge(f"{self._who} {what[:MAX_ERROR_CHARS]}")

    async def close(self) -> None:
        """Close the connections; judgements in flight fail."""
        await self._client.aclose()

    async def _once(self, path: str, content: bytes) -> bytes:
        limit = self._limits.request_timeout_seconds
        self._traffic.requests += 1
        try:
            async with (
                asyncio.timeout(limit),
                self._client.stream(
                    "POST",
                    f"{self._url}{path}",
                    content=content,
                    headers={"Content-Type": "application/json"},
                ) as response,
            ):
                body = await _read(response)
        except TimeoutError:
            raise _Passing(f"no answer within {limit:g} s") from None
        except httpx2.TransportError as error:
            raise _Passing(f"{type(error).__name__}: {error}") from None
        if response.status_code in self._passing:
            raise _Passing(f"HTTP {response.status_code}", retry_after(response.headers.get("retry-after")))
        if response.status_code != 200:
            explanation = one_line(body[: 10 * MAX_ERROR_CHARS].decode("utf-8", "replace"), 10 * MAX_ERROR_CHARS)
            reason = self.failed(f"refused the request: HTTP {response.status_code}: {explanation}")
            raise RefusedError(str(reason), response.status_code, explanation)
        return body

    def _backoff(self, attempt: int) -> float:
        limits = self._limits
        wait = limits.max_backoff_seconds
        if attempt < 64:  # beyond, the power alone exceeds every limit
            wait = min(wait, limits.backoff_seconds * 2**attempt)
        return wait * random.uniform(0.5, 1.0)


async def _read(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise _Passing(f"an answer of more than {MAX_BODY_BYTES} bytes")
    return bytes(body)


def read_key(option: str, variable: str | None) -> SecretStr | None:
    """Return the secret that an environment variable holds; None where no variable is named.

    Args:
        option: the option that names the variable, for the error.
        variable: its name.

    Raises:
        ValueError: it is not set, or holds no key.
    """
    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ValueError(f"{option} names {variable}, which is not set in the environment")
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"the environment variable {variable} holds no key: not a line of plain characters")
    return SecretStr(value)


def retry_after(value: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header, a number or a date; None where it is absent or neither."""
    if value is None:
        return None
    try:
        seconds = (
            float(value) if value.strip()[:1].isdigit() else parsedate_to_datetime(value).timestamp() - time.time()
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, seconds) if seconds < float("inf") else None
