"""Options of the code verifier. Pydantic only."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.config import Config, RunTime
from tasks.verifiers.connection import VARIABLE, ConnectionConfig, plain_url

LIMITS = ("test_seconds", "total_seconds", "memory_mib", "output_bytes", "disk_mib", "packages")


class RemoteConfig(ConnectionConfig):
    """Code that is run elsewhere, by the code server of this project (`tasks.verifiers.code.server`).

    The limits of requests are those of `ConnectionConfig`, with more patience: while its cluster replaces a server, all
    places of one are taken, or programs that hang come first, judgements wait.
    """

    url: str
    """Such as `http://code.internal:8440`, or `https://...`."""
    token_env: str | None = Field(None, pattern=VARIABLE)
    """NAME of the environment variable that holds the server's token; None where it wants none."""
    certificate: str | None = None
    """File with the certificates (PEM) that a server's own is checked against; None for the system's."""
    request_timeout_seconds: float = Field(600.0, gt=0)
    timeout_seconds: float = Field(3600.0, gt=0)
    retries: int = Field(20, ge=0)
    backoff_seconds: float = Field(0.5, gt=0)
    max_backoff_seconds: float = Field(10.0, gt=0)

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str) -> str:
        return plain_url(url, "the base URL of a code server, as in http://code.internal:8440", "token_env")


class CodeConfig(Config):
    """How responses that are programs are run and rewarded."""

    reward: Literal["proportion", "all_or_nothing"] = "proportion"
    """`proportion` of the tests that pass (OlmoRL's variant a), or `all_or_nothing` (variant b)."""
    min_proportion: float = Field(0.0, ge=0, le=1)
    """With `proportion`, a smaller one counts as 0."""
    isolation: Literal["auto", "namespaces", "landlock"] = "auto"
    """`namespaces` (bubblewrap), `landlock` (where user namespaces are not to be had), or `auto`: the first of the two
    that works here. Both add a system call filter and resource limits. Where neither works no code runs, and every
    judgement is an error that says so."""
    remote: RunTime[RemoteConfig | None] = None
    """Run code elsewhere, not in a service that is started for the run. `isolation`, `python` and `total_memory_mib`
    are then the server's own; the limits below must be those that it was started with."""
    python: str | None = None
    """Interpreter that runs the code; None is the one that runs this."""
    packages: list[str] = ["numpy"]  # noqa: RUF012 (pydantic copies defaults)
    """Installed packages that programs may import beside the standard library; they are loaded before any program
    starts."""
    test_seconds: float = Field(2.0, gt=0)
    """Time of one test: what its processes compute and sleep. What other processes take from them is not charged."""
    total_seconds: float = Field(4.0, gt=0)
    """Time of all tests of a response."""
    memory_mib: int = Field(512, ge=128)
    """Address space of the process that runs a response, and of the one that runs its tests."""
    total_memory_mib: RunTime[int] = Field(16384, gt=0)
    """Address space of all these processes together; bounds how many there are."""
    output_bytes: int = Field(1 << 20, gt=0)
    """Standard output of a program; more than that fails its test."""
    disk_mib: int = Field(16, gt=0)
    """Size of the only folder that a response can write to; there is none under `landlock`."""

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
        """The options that decide whether a test passes, by name, as JSON has them."""
        return self.model_dump(mode="json", include=set(LIMITS))

    def places(self, wanted: int) -> int:
        """How many programs run in each of two lanes where `wanted` are asked for: they keep within the memory."""
        return min(wanted, self.total_memory_mib // (4 * self.memory_mib))

    def worth(self, proportion: float) -> float:
        """The value of a response of whose tests this proportion passes, in [0, 1]."""
        if self.reward == "all_or_nothing" or proportion < self.min_proportion:
            return float(proportion == 1.0)
        return proportion
