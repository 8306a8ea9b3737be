"""One OpenAI-compatible endpoint: requests that are bounded, retried, counted and never more than so many at a time.

What is repeated is what may pass: 408, 409, 429, 5xx, a broken connection, a timeout. What is not (a wrong key, an
unknown model) is `CannotJudge` at once. The key lives in the headers of the client and in no text that leaves it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
from pydantic import SecretStr

from tasks.verifiers.chat.config import JudgeConfig
from tasks.verifiers.scores import CannotJudge

MAX_BODY_BYTES = 4 * 2**20
MAX_SAID = 400  # characters of an error
_PASSING = frozenset({408, 409, 429, *range(500, 600)})
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass
class Usage:
    """What judging cost so far.

    Attributes:
        requests: that were sent, repetitions included.
        retries: repetitions, for whatever reason.
        failures: judgements that ended without a grade.
        input_tokens, output_tokens: as the judge counts them, of answers that were no judgement too.
        cost: of those tokens, in the currency of the prices.
        seconds: summed over the judgements, waiting in the queue left out.
    """

    requests: int = 0
    retries: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """The counters by name."""
        return asdict(self)


class _Passing(Exception):  # noqa: N818 - a state of affairs, not an error of ours
    """A failure that may pass; `wait` is how long the endpoint asks to be left alone, None where it does not say."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class Endpoint:
    """The client; it belongs to the event loop that uses it first."""

    def __init__(self, config: JudgeConfig, usage: Usage) -> None:
        """Raises `ValueError` where the configuration names no URL, or a variable that holds no key."""
        if config.url is None:
            raise ValueError("the judge has no url: give one, or start a server with serving(config)")
        self._config = config
        self._usage = usage
        self._key = _key(config)
        headers = {"Accept-Encoding": "identity"}  # what is compressed could not be bounded as it is read
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.get_secret_value()}"
        self._client = httpx2.AsyncClient(
            headers=headers,
            timeout=None,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=config.concurrency),
            trust_env=httpx2.URL(config.url).host not in _LOOPBACK,  # no proxy stands before this machine
        )

    async def ask(self, messages: list[dict[str, str]], fields: dict[str, Any], deadline: float) -> bytes:
        """The body of the endpoint's answer to one request.

        Args:
            messages: the prompt.
            fields: what the request says beside model and prompt.
            deadline: `time.monotonic()` at which the judgement must have ended: no wait reaches beyond it.

        Raises:
            CannotJudge: refused, or not answered within the retries or before the deadline.
        """
        config = self._config
        request = {**config.extra_body, **fields, "model": config.model, "messages": messages, "stream": False}
        content = json.dumps(request).encode()
        attempt = 0
        while True:
            try:
                return await self._once(content)
            except _Passing as failure:
                if attempt == config.retries:
                    raise self.failed(f"failed {attempt + 1} times, at last: {failure}") from None
                wait = failure.wait if failure.wait is not None else self._backoff(attempt)
                if time.monotonic() + wait >= deadline:
                    raise self.failed(
                        f"failed ({failure}), and a wait of {wait:.1f} s would pass the limit of "
                        f"{config.timeout_seconds:g} s"
                    ) from None
            await asyncio.sleep(wait)
            attempt += 1
            self._usage.retries += 1

    def failed(self, what: str) -> CannotJudge:
        """The error that names endpoint and model; the key, should `what` quote it, is taken out before any cut."""
        if self._key is not None:
            what = what.replace(self._key.get_secret_value(), "[key]")
        return CannotJudge(f"the judge {self._config.model!r} at {self._config.url} {what[:MAX_SAID]}")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _once(self, content: bytes) -> bytes:
        limit = self._config.request_timeout_seconds
        self._usage.requests += 1
        try:
            async with (
                asyncio.timeout(limit),
                self._client.stream(
                    "POST",
                    f"{self._config.url}/chat/completions",
                    content=content,
                    headers={"Content-Type": "application/json"},
                ) as response,
            ):
                body = await self._read(response)
        except TimeoutError:
            raise _Passing(f"no answer within {limit:g} s") from None
        except httpx2.TransportError as error:
            raise _Passing(f"{type(error).__name__}: {error}") from None
        if response.status_code in _PASSING:
            raise _Passing(f"HTTP {response.status_code}", _retry_after(response.headers.get("retry-after")))
        if response.status_code != 200:
            said = " ".join(body[: 10 * MAX_SAID].decode("utf-8", "replace").split())
            raise self.failed(f"refused the request: HTTP {response.status_code}: {said}")
        return body

    async def _read(self, response: httpx2.Response) -> bytes:
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise _Passing(f"an answer of more than {MAX_BODY_BYTES} bytes")
        return bytes(body)

    def _backoff(self, attempt: int) -> float:
        config = self._config
        wait = config.max_backoff_seconds
        if attempt < 64:  # beyond, the power alone exceeds every limit
            wait = min(wait, config.backoff_seconds * 2**attempt)
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 spreads requests, guards nothing


def _key(config: JudgeConfig) -> SecretStr | None:
    if config.api_key_env is None:
        return None
    value = os.environ.get(config.api_key_env, "").strip()
    if not value:
        raise ValueError(f"api_key_env names {config.api_key_env}, which is not set in the environment")
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"the environment variable {config.api_key_env} holds no key: not a line of plain characters")
    return SecretStr(value)


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait, from a number of them or a date; None where the header is absent or neither."""
    if value is None:
        return None
    try:
        seconds = (
            float(value) if value.strip()[:1].isdigit() else parsedate_to_datetime(value).timestamp() - time.time()
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, seconds) if seconds < float("inf") else None
