"""HTTP client of a remote judge. Limits the size of responses and the number of requests, and retries after failures.

A request is retried after a failure that may be transient: HTTP 408, 409, 429 or 5xx, a broken connection, a timeout.
Any other failure (a wrong key, an unknown model) raises `CannotJudge` immediately. The key is only in the headers of
the client, and never in error messages.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TypeVar

import httpx2
from pydantic import SecretStr

from tasks.config.connection import ConnectionConfig
from tasks.failures import one_line
from tasks.verifiers.scores import CannotJudge

MAX_BODY_BYTES = 4 * 2**20
"""Maximum length of a response in bytes."""
MAX_ERROR_CHARS = 400  # characters of an error
"""Maximum length of an error message, in characters."""
PASSING = frozenset({408, 409, 429, *range(500, 600)})
"""HTTP status codes after which a request is retried."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Host names of this machine, for which no proxy is used."""

Result = TypeVar("Result")


@dataclass
class Traffic:
    """Counters of the requests to a remote judge.

    Attributes:
        requests: requests sent, including retries.
        retries: retries, for any reason.
        failures: calls that ended without a result.
        seconds: seconds summed over the calls, without their wait in the queue.
    """

    requests: int = 0
    retries: int = 0
    failures: int = 0
    seconds: float = 0.0

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Add the seconds of the block, and count a failure if it raises `CannotJudge`."""
        started = time.monotonic()
        try:
            yield
        except CannotJudge:
            self.failures += 1
            raise
        finally:
            self.seconds += time.monotonic() - started

    def to_dict(self) -> dict[str, float]:
        """Return the counters by name."""
        return asdict(self)


class _Passing(Exception):  # noqa: N818 - a status, not an error
    """A failure that may be transient. `wait` is the server's `Retry-After` in seconds, or None."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class RefusedError(CannotJudge):
    """The server refused a request permanently.

    Attributes:
        status: HTTP status of the response.
        explanation: the server's reason, shortened.
    """

    def __init__(self, reason: str, status: int, explanation: str) -> None:
        super().__init__(reason)
        self.status = status
        self.explanation = explanation


@cache
def _load_certificates(*, trust_env: bool) -> ssl.SSLContext:
    """Read the CA certificates once for all clients, because it takes 50 ms."""
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
            passing: HTTP status codes after which a request is retried.
            transport: the connection to the server. Optional. If None, the default of the HTTP library.
        """
        self._who = f"{who} at {url}"
        self._url = url
        self._limits = config
        self._traffic = traffic
        self._key = key
        self._passing = passing
        self._in_flight = asyncio.Semaphore(config.concurrency)
        outside = httpx2.URL(url).host not in LOOPBACK
        headers = {"Accept-Encoding": "identity"}  # the size of a compressed body could not be limited
        if key is not None:
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        self._client = httpx2.AsyncClient(
            headers=headers,
            timeout=None,
            transport=transport,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=config.concurrency),
            verify=_load_certificates(trust_env=outside),
            trust_env=outside,  # requests to this machine use no proxy
        )

    async def judgement(self, work: Callable[[float], Awaitable[Result]]) -> Result:
        """Await `work` once a slot of `concurrency` is free, within `timeout_seconds`, and return its result.

        Args:
            work: called with the deadline, in `time.monotonic()` time, that its requests must meet.

        Raises:
            CannotJudge: raised by `work`, or the time limit was reached; counted as a failure.
        """
        limit = self._limits.timeout_seconds
        async with self._in_flight:
            with self._traffic.timing():
                try:
                    async with asyncio.timeout(limit):
                        return await work(time.monotonic() + limit)
                except TimeoutError:
                    raise self.make_error(f"took longer than {limit:g} s over a judgement") from None

    async def post(self, path: str, content: bytes, deadline: float) -> bytes:
        """Send one request with a JSON body and return the response body; no wait extends beyond the deadline.

        Raises:
            CannotJudge: refused, or no response within the retries or before the deadline.
        """
        limits = self._limits
        attempt = 0
        while True:
            try:
                return await self._send_once(path, content)
            except _Passing as failure:
                if attempt == limits.retries:
                    raise self.make_error(f"failed {attempt + 1} times, at last: {failure}") from None
                wait = failure.wait if failure.wait is not None else self._compute_backoff(attempt)
                if time.monotonic() + wait >= deadline:
                    raise self.make_error(
                        f"failed ({failure}), and a wait of {wait:.1f} s would pass the limit of "
                        f"{limits.timeout_seconds:g} s"
                    ) from None
            await asyncio.sleep(wait)
            attempt += 1
            self._traffic.retries += 1

    def make_error(self, what: str) -> CannotJudge:
        """Return an error that names the server. If `what` contains the key, it is removed before truncation."""
        if self._key is not None:
            what = what.replace(self._key.get_secret_value(), "[key]")
        return CannotJudge(f"{self._who} {what[:MAX_ERROR_CHARS]}")

    async def close(self) -> None:
        """Close the connections; calls in flight fail."""
        await self._client.aclose()

    async def _send_once(self, path: str, content: bytes) -> bytes:
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
            reason = self.make_error(f"refused the request: HTTP {response.status_code}: {explanation}")
            raise RefusedError(str(reason), response.status_code, explanation)
        return body

    def _compute_backoff(self, attempt: int) -> float:
        limits = self._limits
        wait = limits.max_backoff_seconds
        if attempt < 64:  # for more, the power alone exceeds every limit
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
    """Return the secret in an environment variable, or None if no variable is named.

    Args:
        option: the option that names the variable, for the error.
        variable: its name.

    Raises:
        ValueError: it is not set, or is not a valid key.
    """
    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ValueError(f"{option} names {variable}, which is not set in the environment")
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"the environment variable {variable} contains no key: not a line of plain characters")
    return SecretStr(value)


def retry_after(value: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header, a number or a date, or None if it is absent or neither."""
    if value is None:
        return None
    try:
        seconds = (
            float(value) if value.strip()[:1].isdigit() else parsedate_to_datetime(value).timestamp() - time.time()
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, seconds) if seconds < float("inf") else None
