"""Options of the requests to a service in another process. Imports pydantic only: no client is loaded."""

from __future__ import annotations

import ipaddress
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from tasks.config.loading import Config, RunTime

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""Pattern of the name of an environment variable."""


class ConnectionConfig(Config):
    """Options of a client of a remote judge: concurrency, time limits, and retries."""

    concurrency: RunTime[int] = Field(32, gt=0)
    """Maximum number of requests in flight; further ones wait in order."""
    request_timeout_seconds: RunTime[float] = Field(120.0, gt=0)
    """Seconds that one request may take, until its response has been read completely."""
    timeout_seconds: RunTime[float] = Field(600.0, gt=0)
    """Seconds that scoring one response may take in total, including retries, from when it leaves the queue."""
    retries: RunTime[int] = Field(5, ge=0)
    """Retries of a request after a failure that may be transient: HTTP 408, 409, 429 or 5xx, a broken connection, a
    timeout."""
    backoff_seconds: RunTime[float] = Field(1.0, gt=0)
    """Seconds to wait before the first retry of a request, doubled for each further one up to `max_backoff_seconds`.
    The wait is shortened by a random part of up to half. If the server sends `Retry-After`, that wait is used
    instead."""
    max_backoff_seconds: RunTime[float] = Field(60.0, gt=0)
    """Maximum number of seconds to wait between retries of a request."""

    @model_validator(mode="after")
    def _check_backoff(self) -> Self:
        if self.backoff_seconds > self.max_backoff_seconds:
            raise ValueError(
                f"backoff_seconds is {self.backoff_seconds:g}, above max_backoff_seconds {self.max_backoff_seconds:g}"
            )
        return self


def normalize_url(url: str, wanted: str, key_option: str) -> str:
    """Return the URL without a trailing slash.

    Args:
        url: the URL as the user gave it.
        wanted: description of an accepted URL, for the error.
        key_option: the option that names the environment variable of a secret, as a URL must not contain one.

    Raises:
        ValueError: it is not a plain base URL.
    """
    parts = urlsplit(url)  # itself raises ValueError for a malformed host
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"must be {wanted}")
    if "@" in parts.netloc:
        raise ValueError(f"must not contain a user or password; name an environment variable in {key_option}")
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    """Return True if a host, by name or address, is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
